// atom check: every tensor of a checkpoint accounted for, from headers alone.
#include <fmt/core.h>

#include <map>

#include "base/error.h"
#include "base/text_util.h"
#include "cli/command.h"
#include "runtime/account.h"

namespace atom::cli {
namespace {

struct Flags {
  std::string model;
  bool all = false;
  bool json = false;
  int drafts = 0;
};

void print_json(const Account& account, const std::vector<std::string>& problems) {
  Json expected = Json::array(), stored = Json::array();
  for (const PieceAccount& piece : account.pieces) {
    Json entry = {
        {"tensor", piece.source != nullptr ? piece.source->name : piece.piece->any_of.front().name},
        {"parameter", piece.param->path},
        {"shape", piece.param->kind == ParamEntry::Kind::matrix ? Json{piece.piece->rows, piece.piece->cols}
                                                                : Json{piece.piece->rows}},
        {"found", piece.stored == nullptr ? Json() : Json(to_string(*piece.stored))}};
    if (!piece.problem.empty()) entry["problem"] = piece.problem;
    expected.push_back(std::move(entry));
  }
  for (const StoredAccount& s : account.stored) {
    Json entry = {{"tensor", s.stored->name}, {"stored", to_string(*s.stored)}};
    if (!s.used_by.empty()) entry["used_by"] = s.used_by;
    if (!s.ignored.empty()) entry["ignored"] = s.ignored;
    stored.push_back(std::move(entry));
  }
  print_line(
      Json{{"ok", problems.empty()}, {"problems", problems}, {"expected", expected}, {"stored", stored}}.dump(
          1));
}

void run(const Flags& f) {
  const std::filesystem::path path = locate_model(f.model);
  const ModelFiles files = open_model_files(path);
  const Checkpoint checkpoint = Checkpoint::open(files.root);
  const ModelDeclaration model(files, f.drafts > 0 ? wanted_drafter(&checkpoint) : DrafterOptions{});
  const Account account = atom::account(model.tables(), checkpoint);
  const std::vector<std::string> problems = account.problems();
  if (f.json) {
    print_json(account, problems);
  } else {
    int64_t found = 0, used = 0, ignored = 0, bytes = 0;
    for (const PieceAccount& piece : account.pieces) found += piece.stored != nullptr;
    std::map<std::string, int64_t> reasons;
    for (const StoredAccount& s : account.stored) {
      bytes += s.stored->bytes;
      used += !s.used_by.empty();
      ignored += !s.ignored.empty();
      if (!s.ignored.empty()) ++reasons[s.ignored];
      if (f.all) {
        fmt::print("{:<64} {:<24} {}\n", s.stored->name, to_string(*s.stored),
                   !s.used_by.empty()   ? "-> " + s.used_by
                   : !s.ignored.empty() ? "ignored: " + s.ignored
                                        : "UNCLAIMED");
      }
    }
    fmt::print("{}: {} files, {} tensors, {}\n", path.string(), checkpoint.files().size(),
               account.stored.size(), format_bytes(bytes));
    fmt::print("expected {}, found {}, consumed {}, ignored {}\n", account.pieces.size(), found, used,
               ignored);
    for (const auto& [reason, count] : reasons) fmt::print("  ignored {}: {}\n", count, reason);
    for (const IgnoredTensor& t : checkpoint.ignored())
      fmt::print("  not read: {} in {}: {}\n", t.name, t.file, t.reason);
    for (const std::string& problem : problems) fmt::print("  problem: {}\n", problem);
    if (problems.empty()) fmt::print("every tensor is accounted for\n");
  }
  if (!problems.empty()) throw invalid("{}: {} problems", path.string(), problems.size());
}

}  // namespace

void add_check(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("check", "account for every tensor of a checkpoint");
  add_model_flag(verb, f->model);
  verb->add_flag("--all", f->all, "list every tensor");
  verb->add_flag("--json", f->json, "the whole account as JSON");
  verb->add_option("--num-speculative-tokens", f->drafts,
                   "more than 0: the drafter's tensors are loaded, too")
      ->check(CLI::Range(0, static_cast<int>(kMaxDrafts)));
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
