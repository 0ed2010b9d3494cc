// atom inspect: the anatomy of a checkpoint from its config and tensor headers alone.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "cli/command.h"
#include "cli/inspection.h"

namespace atom::cli {
namespace {

struct Flags {
  std::string model, html;
  bool json = false;
  std::optional<int64_t> layer;
};

void write_page(const std::string& path, const std::string& page) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw failed("--html {}: {}", path, std::strerror(errno));
  const bool written = std::fwrite(page.data(), 1, page.size(), file) == page.size();
  if (std::fclose(file) != 0 || !written)
    throw failed("--html {}: cannot write: {}", path, std::strerror(errno));
}

void run(const Flags& f) {
  const Inspection inspection = inspect(open_model_files(locate_model(f.model)), f.layer);
  if (!f.html.empty()) {
    write_page(f.html, to_html(inspection));
  } else if (f.json) {
    print_line(to_json(inspection).dump(1, ' ', false, Json::error_handler_t::replace));
  } else {
    print_line(to_text(inspection));
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("inspect", "where a model's parameters are, from config and headers alone");
  add_model_flag(verb, f->model);
  auto* json = verb->add_flag("--json", f->json, "as JSON");
  verb->add_option("--html", f->html, "write a self-contained page to this file")
      ->excludes(json)
      ->check(not_empty());
  verb->add_option("--layer", f->layer, "the layer to unfold; default: the last of the commonest kind");
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
