// What `atom inspect` knows about a checkpoint, and the forms in which it tells it.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/model_files.h"
#include "runtime/anatomy.h"

namespace atom::cli {

// Tensors as the files store them; without files only the size of plain weights is known.
struct StoredTotals {
  struct Kind {
    int64_t count = 0, bytes = 0;
  };
  bool from_headers = false;
  std::optional<int64_t> count, bytes;
  std::map<std::string, Kind> by_dtype;
  size_t files = 0;
};

struct Inspection {
  std::string name;  // of the folder or file
  Anatomy anatomy;
  Json quantization;  // null: plain weights
  StoredTotals stored;
  int64_t unfolded_layer = 0;
  std::vector<TensorLine> unfolded;
};

// From config and headers; `layer` is the one to unfold, by default the last of the most frequent kind.
// Throws Error (invalid) for a bad config or header, or a layer that is not there.
Inspection inspect(const ModelFiles& files, std::optional<int64_t> layer);

Json to_json(const Inspection& inspection);
std::string to_text(const Inspection& inspection);  // a page for the terminal
std::string to_html(const Inspection& inspection);  // a self-contained page

// "753.33 B", "118.0 M", "96": a number of parameters.
std::string format_count(int64_t count);

// The layer schedule as rows of one letter per layer, and what the letters mean.
struct Strip {
  struct Row {
    std::string title, letters;
    std::vector<std::pair<char, std::string>> legend;
  };
  std::vector<Row> rows;
};
Strip layer_strip(const Anatomy& anatomy);

}  // namespace atom::cli
