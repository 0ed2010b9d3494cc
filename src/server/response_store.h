// Finished responses that later requests may continue. In memory, bounded, the oldest forgotten first.
// Thread-safe.
#pragma once
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/json.h"

namespace atom::server {

class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 4096;
  static constexpr size_t kMaxBytes = 64 << 20;  // of their JSON

  struct Entry {
    Json response;    // as the client was answered
    Json messages;    // the conversation up to and with the answer, without instructions
    std::string key;  // of its owner: others do not see it
  };

  void put(const std::string& id, Entry entry);
  std::optional<Entry> get(const std::string& id, const std::string& key) const;
  bool remove(const std::string& id, const std::string& key);

 private:
  struct Stored {
    std::string id;
    Entry entry;
    size_t bytes;
  };
  void drop(std::list<Stored>::iterator place);

  mutable std::mutex mutex_;
  std::list<Stored> entries_;  // oldest first
  std::unordered_map<std::string, std::list<Stored>::iterator> places_;
  size_t bytes_ = 0;
};

}  // namespace atom::server
