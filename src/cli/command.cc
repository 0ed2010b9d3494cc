#include "cli/command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/text_util.h"
#include "runtime/quantisation.h"

namespace atom::cli {
namespace {

constexpr size_t kMaxInput = size_t{1} << 30;

template <class T>
T parse_number(std::string_view text, const char* flag) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    throw invalid("{}: \"{}\" is not a number", flag, text);
  return value;
}

}  // namespace

void add_model_flag(CLI::App* verb, std::string& model) {
  verb->add_option("--model", model,
                   "model folder, .gguf file or Hugging Face id; default: the fetched demo model")
      ->check(not_empty());
}

void add_model_flags(CLI::App* verb, ModelOptions& o) {
  add_model_flag(verb, o.model);
  verb->add_option(
      "--device", o.device,
      "auto (GPUs if there are as many as ranks and they can run the model), cpu, cuda (the first), "
      "cuda:i, one for each rank: cuda:i,j");
  verb->add_option("--dtype", o.dtype, "auto, float32 (exact), bfloat16 or float16");
  verb->add_option("--kv-cache-dtype", o.kv_cache_dtype,
                   "auto (as --dtype), float32, bfloat16, float16 or fp8 (E4M3; latents stay as with auto)");
  verb->add_option("--load-format", o.load_format, "auto, safetensors, gguf, or dummy (random weights)");
  add_quantize_flag(verb, "--quantize", o);
  verb->add_option("--tp", o.tp, "tensor-parallel ranks");
  verb->add_option("--pp", o.pp, "pipeline stages");
  verb->add_option("--ep", o.ep, "groups of the tensor-parallel ranks that experts are dealt to whole");
  verb->add_option("--pp-partition", o.pp_partition, "layers of each stage, for example 18,20,20,20")
      ->delimiter(',');
  verb->add_option("--threads", o.threads, "threads in all; default: one per core")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--loader-threads", o.loader_threads, "threads that read weights")
      ->check(CLI::Range(1, 256));
  verb->add_flag("!--no-mmap", o.mmap, "read weights into memory instead of mapping the files");
  verb->add_option("--max-model-len", o.max_model_len, "longest sequence in tokens")->check(at_least(1));
  verb->add_option("--max-num-seqs", o.max_num_seqs, "sequences that run at once")->check(at_least(1));
  verb->add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "tokens of one step")
      ->check(at_least(1));
  verb->add_option("--block-size", o.block_size, "tokens of one cache block")->check(CLI::Range(1, 4096));
  verb->add_option("--kv-cache-bytes", o.kv_cache_bytes, "memory for keys and values, for example 2GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1));
  verb->add_option("--gpu-memory-utilization", o.gpu_memory_utilization, "share of the GPU's memory to use")
      ->check(CLI::Range(0.05, 1.0));
  verb->add_flag("!--no-prefix-caching", o.prefix_caching, "compute every prompt from its first token");
  add_speculation_flag(verb, o);
}

CLI::Option* add_quantize_flag(CLI::App* verb, const char* flag, ModelOptions& o) {
  return verb->add_option(flag, o.quantize, "how matrices that are stored as plain numbers are quantised")
      ->check(CLI::IsMember(quantisation_targets()));
}

void add_speculation_flag(CLI::App* verb, ModelOptions& o) {
  verb->add_option(
          "--num-speculative-tokens", o.num_speculative_tokens,
          "tokens drafted ahead and verified together, 0 to 4; default: as many as pay, if the checkpoint "
          "has a drafter and runs on the CPU")
      ->check(CLI::Range(0, static_cast<int>(kMaxDrafts)));
}

void add_sampling_flags(CLI::App* verb, SamplingFlags& f) {
  verb->add_option("--temperature", f.temperature,
                   "0 is greedy; default: the checkpoint's suggestion, else 0");
  verb->add_option("--top-p", f.top_p, "smallest set of tokens with this mass");
  verb->add_option("--top-k", f.top_k, "this many best tokens; 0 or -1: all");
  verb->add_option("--min-p", f.min_p, "tokens with this fraction of the best probability");
  verb->add_option("--repetition-penalty", f.repetition_penalty, "over prompt and output; 1: none");
  verb->add_option("--presence-penalty", f.presence_penalty, "over output, once per token");
  verb->add_option("--frequency-penalty", f.frequency_penalty, "over output, per occurrence");
  verb->add_option("--logit-bias", f.logit_bias, "ID=VALUE, added to that token's logit");
  verb->add_option("--min-tokens", f.min_tokens, "no end before this many tokens");
  verb->add_option("--seed", f.seed,
                   "the same seed gives the same text (beside other requests: with --dtype float32)")
      ->check(any_seed());
  verb->add_option("--stop", f.stop, "text that ends the output (may be repeated)");
  verb->add_option("--stop-token-ids", f.stop_ids, "ids that end the output")->delimiter(',');
  verb->add_flag("--ignore-eos", f.ignore_eos, "go on past the checkpoint's end tokens");
}

SamplingParams SamplingFlags::apply(SamplingParams p) const {
  if (temperature) p.temperature = *temperature;
  if (top_p) p.top_p = *top_p;
  if (top_k) p.top_k = *top_k == -1 ? 0 : *top_k;
  if (min_p) p.min_p = *min_p;
  if (repetition_penalty) p.repetition_penalty = *repetition_penalty;
  if (presence_penalty) p.presence_penalty = *presence_penalty;
  if (frequency_penalty) p.frequency_penalty = *frequency_penalty;
  if (min_tokens) p.min_tokens = *min_tokens;
  p.seed = seed;
  p.stop_ids = stop_ids;
  p.ignore_eos = ignore_eos;
  for (const std::string& bias : logit_bias) {
    const size_t eq = bias.find('=');
    if (eq == std::string::npos) throw invalid("--logit-bias {}: write ID=VALUE", bias);
    p.logit_bias.emplace_back(parse_number<int32_t>(std::string_view(bias).substr(0, eq), "--logit-bias"),
                              parse_number<float>(std::string_view(bias).substr(eq + 1), "--logit-bias"));
  }
  return p;
}

void ProgressLine::operator()(const char* phase, int64_t done, int64_t total) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const int64_t now = now_us();
  if (phase_ != phase) {
    phase_ = phase;
    started_us_ = now;
    shown_us_ = 0;
  }
  const bool last = done >= total;
  // A phase that ends within a moment is not worth a line.
  if (now - started_us_ < 300'000 && !visible_) return;
  if (!last && now - shown_us_ < (terminal ? 100'000 : 5'000'000)) return;
  shown_us_ = now;
  const double seconds = static_cast<double>(now - started_us_) * 1e-6;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const int64_t left = rate > 0 ? static_cast<int64_t>(static_cast<double>(total - done) / rate) : 0;
  const std::string text = fmt::format("{} {} of {}, {}/s, {} s left", phase, format_bytes(done),
                                       format_bytes(total), format_bytes(static_cast<int64_t>(rate)), left);
  if (!terminal) {
    say("{}\n", text);
    return;
  }
  constexpr int kWidth = 24;
  const int filled = total > 0 ? static_cast<int>(done * kWidth / total) : kWidth;
  say("\r\033[K[{:-<{}}] {}", std::string(filled, '#'), kWidth, text);
  visible_ = true;
  if (last) clear();
}

void ProgressLine::clear() {
  if (!visible_) return;
  say("\r\033[K");
  visible_ = false;
}

Json speculation_json(const SpeculationStats& s) {
  Json by_position = Json::array();
  for (int64_t i = 0; i < kMaxDrafts && s.drafted_by_position[i] > 0; ++i) {
    by_position.push_back(s.accepted_by_position[i]);
  }
  return {{"steps", s.steps},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"accepted_by_position", by_position}};
}

std::vector<int32_t> parse_ids(const std::string& text, const char* flag) {
  std::vector<int32_t> ids;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view item = rest.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    ids.push_back(parse_number<int32_t>(item, flag));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return ids;
}

void add_tools(text::ChatTemplateInputs& inputs, const std::string& file, const TextModel& model) {
  Json tools = read_json_file(file);
  const auto is_tool = [](const Json& item) { return item.is_object() && !item.contains("role"); };
  if (!tools.is_array() || tools.empty() || !std::ranges::all_of(tools, is_tool))
    throw invalid("--tools {}: not a list of tools", file);
  if (!model.chat_template().reads("tools"))
    throw invalid("--tools: this model's chat template does not take tools");
  inputs.tools = std::move(tools);
}

std::vector<int32_t> random_ids(int64_t tokens, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(counter_uniform(seed, i) * static_cast<double>(vocab));
  return ids;
}

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxInput) throw invalid("standard input is larger than {}", format_bytes(kMaxInput));
  }
  if (std::ferror(stdin) != 0) throw failed("standard input: {}", std::strerror(errno));
  return text;
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw failed("standard output: {}", std::strerror(errno));
}

void print_line(std::string_view text) { write_out(std::string(text) + '\n'); }

void say_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

namespace {

template <class T>
CLI::Validator whole(T least, T most) {
  return {[least, most](const std::string& text) -> std::string {
            T value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc::result_out_of_range) return fmt::format("{} is out of range", text);
            if (error != std::errc{} || end != text.data() + text.size())
              return fmt::format("{} is not a whole number{}", text, std::is_signed_v<T> ? "" : " from 0 on");
            if (value > most) return fmt::format("{} is more than {}", text, most);
            return value < least ? fmt::format("{} is less than {}", text, least) : "";
          },
          ""};
}

}  // namespace

CLI::Validator at_least(int64_t least, int64_t most) { return whole(least, most); }
CLI::Validator any_seed() { return whole(uint64_t{0}, std::numeric_limits<uint64_t>::max()); }

CLI::Validator not_empty() {
  return {[](const std::string& text) -> std::string { return text.empty() ? "is empty" : ""; }, ""};
}

CLI::Validator above_zero() {
  return {[](const std::string& text) -> std::string {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value)) return fmt::format("{} is not a number", text);
            return value > 0 ? "" : fmt::format("{} is not above 0", text);
          },
          ""};
}

}  // namespace atom::cli
