// Runs the scenarios in tests/data/scheduler/*.txt. A script is one command a line; # starts a comment.
//   config block=4 blocks=8 [window=W:BLOCKS]... seqs=4 batched=16 len=64 [skips=16] [caching=0] [drafts=K]   first of
//   all add PROMPT [max=N] [priority=P] [salt=S] [reuse=0] [logits=1]     ids are 0, 1, 2, ... in this order
//   refuse PROMPT [max=N] : part of the message
//   cancel ID | stop ID | fail ID       stop and fail take effect in the next step that computes the sequence
//   step            plan, compare with the indented lines that follow (as to_string(StepPlan) prints them),
//   commit plan, commit    the same in two halves run             steps until nothing is left; at most 1000
//   ended ID REASON [output=N] [reused=N] [why=REASON_IN_ONE_WORD] [preempted=N]
//   running ID... | waiting ID... | used N... | idle | hits TOKENS | preemptions N
//   wrong N         every N-th drafted token is wrong, counted from the place where its sequence begins
// A prompt is ids and ranges: 1-8,20. The token generated after a prefix of n tokens is 1000 + n.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "base/file.h"
#include "scheduler/fake_device.h"
#include "scheduler/scheduler.h"

namespace atom {
namespace {

std::vector<int32_t> parse_prompt(const std::string& text) {
  std::vector<int32_t> tokens;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = std::stoi(part.substr(0, dash));
    const int last = dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
    for (int token = first; token <= last; ++token) tokens.push_back(token);
  }
  return tokens;
}

// One line: a verb, plain words, key=value options.
struct Command {
  std::string verb, message;
  std::vector<std::string> words;
  std::multimap<std::string, std::string> options;

  explicit Command(const std::string& line) {
    const size_t colon = line.find(" : ");
    if (colon != std::string::npos) message = line.substr(colon + 3);
    std::istringstream stream(line.substr(0, colon));
    stream >> verb;
    for (std::string word; stream >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        words.push_back(word);
      } else {
        options.emplace(word.substr(0, equals), word.substr(equals + 1));
      }
    }
  }
  bool has(const std::string& key) const { return options.contains(key); }
  int64_t number(const std::string& key, int64_t otherwise) const {
    const auto found = options.find(key);
    return found == options.end() ? otherwise : std::stoll(found->second);
  }
  std::string text(const std::string& key) const {
    const auto found = options.find(key);
    return found == options.end() ? "" : found->second;
  }
};

class Script {
 public:
  explicit Script(const std::filesystem::path& path) : name_(path.filename().string()) {
    std::istringstream text(read_file(path, 1 << 20));
    for (std::string line; std::getline(text, line);) {
      line = line.substr(0, line.find('#') == 0 ? 0 : line.size());  // "  #0 ..." is an expected line
      lines_.push_back(line);
    }
  }

  void run() {
    while (at_ < lines_.size() && !::testing::Test::HasFailure()) {
      const std::string line = lines_[at_++];
      if (line.empty()) continue;
      SCOPED_TRACE(fmt::format("{}:{}: {}", name_, at_, line));
      execute(Command(line));
    }
  }

 private:
  void execute(const Command& command) {
    const std::string& verb = command.verb;
    if (verb == "config") return configure(command);
    ASSERT_TRUE(scheduler_) << "a script begins with config";
    if (verb == "add") {
      const Result<SequenceId> id = scheduler_->add(spec(command));
      ASSERT_TRUE(id.ok()) << id.error().message();
    } else if (verb == "refuse") {
      const Result<SequenceId> id = scheduler_->add(spec(command));
      ASSERT_FALSE(id.ok());
      EXPECT_NE(id.error().message().find(command.message), std::string::npos) << id.error().message();
    } else if (verb == "cancel") {
      EXPECT_TRUE(scheduler_->cancel(id(command)));
    } else if (verb == "stop") {
      device_->stop.insert(id(command));
    } else if (verb == "fail") {
      device_->fail.insert(id(command));
    } else if (verb == "wrong") {
      device_->draft = [n = std::stoll(command.words.at(0))](Digest, int64_t position, int64_t) {
        return static_cast<int32_t>(position % n == 0 ? 0 : 1000 + position);
      };
    } else if (verb == "step") {
      plan();
      commit();
    } else if (verb == "plan") {
      plan();
    } else if (verb == "commit") {
      commit();
    } else if (verb == "run") {
      for (int step = 0; step < 1000 && !scheduler_->idle(); ++step) {
        plan();
        commit();
      }
      EXPECT_TRUE(scheduler_->idle());
    } else if (verb == "ended") {
      check_ended(command);
    } else if (verb == "running" || verb == "waiting") {
      check_states(command);
    } else if (verb == "used") {
      std::vector<std::string> used;
      for (const auto& group : scheduler_->stats().groups) used.push_back(std::to_string(group.used));
      EXPECT_EQ(used, command.words);
    } else if (verb == "idle") {
      EXPECT_TRUE(scheduler_->idle());
      EXPECT_TRUE(scheduler_->plan().empty());
    } else if (verb == "hits") {
      EXPECT_EQ(scheduler_->stats().hit_tokens, std::stoll(command.words.at(0)));
    } else if (verb == "preemptions") {
      EXPECT_EQ(scheduler_->stats().preemptions, std::stoll(command.words.at(0)));
    } else {
      FAIL() << "unknown command";
    }
  }

  static SequenceId id(const Command& command) { return std::stoll(command.words.at(0)); }

  void configure(const Command& command) {
    SchedulerConfig config;
    config.block_size = command.number("block", 4);
    if (command.has("blocks")) {
      config.groups.push_back({.kind = CacheKind::paged, .blocks = command.number("blocks", 0)});
    }
    const auto [begin, end] = command.options.equal_range("window");
    for (auto window = begin; window != end; ++window) {
      const size_t colon = window->second.find(':');
      config.groups.push_back({.kind = CacheKind::window,
                               .window = std::stoll(window->second.substr(0, colon)),
                               .blocks = std::stoll(window->second.substr(colon + 1))});
    }
    config.max_num_seqs = command.number("seqs", 4);
    config.max_num_batched_tokens = command.number("batched", 16);
    config.max_model_len = command.number("len", 64);
    config.max_skips = command.number("skips", 16);
    config.prefix_caching = command.number("caching", 1) != 0;
    drafts_ = command.number("drafts", 0);
    scheduler_.emplace(config);
    device_.emplace(config, [](Digest, int64_t position) { return static_cast<int32_t>(1000 + position); });
  }

  SequenceSpec spec(const Command& command) const {
    SequenceSpec spec{.prompt = parse_prompt(command.words.at(0))};
    if (command.has("max")) spec.max_tokens = command.number("max", 0);
    spec.priority = static_cast<int>(command.number("priority", 0));
    spec.cache_salt = command.text("salt");
    spec.reuse_prefix = command.number("reuse", 1) != 0;
    spec.prompt_logits = command.number("logits", 0) != 0;
    spec.draft_limit = drafts_;
    return spec;
  }

  void plan() {
    plan_ = scheduler_->plan();
    std::string expected;
    while (at_ < lines_.size() && lines_[at_].starts_with("  ")) expected += lines_[at_++] + "\n";
    const std::string printed = to_string(plan_);
    if (!expected.empty()) {
      EXPECT_EQ(printed.substr(printed.find('\n') + 1), expected);
    }
  }

  void commit() {
    ASSERT_FALSE(plan_.empty()) << "nothing to commit";
    scheduler_->commit(device_->run(plan_, *scheduler_));
    for (FinishedSequence& ended : scheduler_->take_finished()) ended_.emplace(ended.id, std::move(ended));
  }

  void check_ended(const Command& command) {
    for (FinishedSequence& ended : scheduler_->take_finished()) ended_.emplace(ended.id, std::move(ended));
    ASSERT_TRUE(ended_.contains(id(command)));
    const FinishedSequence& ended = ended_.at(id(command));
    EXPECT_EQ(to_string(ended.reason), command.words.at(1));
    EXPECT_EQ(ended.output.size(), command.number("output", ended.output.size()));
    EXPECT_EQ(ended.reuse.tokens, command.number("reused", ended.reuse.tokens));
    EXPECT_EQ(ended.preemptions, command.number("preempted", ended.preemptions));
    if (command.has("why")) {
      std::string why(to_string(ended.reuse.stop));
      std::ranges::replace(why, ' ', '_');
      EXPECT_EQ(why, command.text("why"));
    }
    // No token is lost or repeated, whatever happened on the way.
    for (size_t i = 0; i < ended.output.size(); ++i) {
      EXPECT_EQ(ended.output[i], 1000 + ended.prompt_tokens + static_cast<int64_t>(i));
    }
  }

  void check_states(const Command& command) {
    const auto state = command.verb == "running" ? Sequence::State::running : Sequence::State::waiting;
    for (const std::string& word : command.words) {
      const Sequence* sequence = scheduler_->find(std::stoll(word));
      ASSERT_NE(sequence, nullptr) << word << " has ended";
      EXPECT_EQ(sequence->state, state) << "sequence " << word;
    }
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(command.verb == "running" ? stats.running : stats.waiting, command.words.size());
  }

  std::string name_;
  std::vector<std::string> lines_;
  size_t at_ = 0;
  std::optional<Scheduler> scheduler_;
  std::optional<FakeDevice> device_;
  StepPlan plan_;
  int64_t drafts_ = 0;
  std::map<SequenceId, FinishedSequence> ended_;
};

class SchedulerScript : public ::testing::TestWithParam<std::string> {};

TEST_P(SchedulerScript, GoesAsWritten) {
  Script(std::filesystem::path(ATOM_TEST_DATA) / "data/scheduler" / (GetParam() + ".txt")).run();
}

std::vector<std::string> script_names() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(ATOM_TEST_DATA "/data/scheduler")) {
    if (file.path().extension() == ".txt") names.push_back(file.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, SchedulerScript, ::testing::ValuesIn(script_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace atom
