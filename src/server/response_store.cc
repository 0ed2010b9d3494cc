#include "server/response_store.h"

#include "server/openai_form.h"

namespace atom::server {

void ResponseStore::put(const std::string& id, Entry entry) {
  const size_t bytes = dump(entry.response).size() + dump(entry.messages).size();
  if (bytes > kMaxBytes) return;
  const std::lock_guard lock(mutex_);
  entries_.push_back({id, std::move(entry), bytes});
  places_[id] = std::prev(entries_.end());
  bytes_ += bytes;
  while (entries_.size() > kMaxResponses || bytes_ > kMaxBytes) drop(entries_.begin());
}

void ResponseStore::drop(std::list<Stored>::iterator place) {
  bytes_ -= place->bytes;
  places_.erase(place->id);
  entries_.erase(place);
}

std::optional<ResponseStore::Entry> ResponseStore::get(const std::string& id, const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end() || found->second->entry.key != key) return std::nullopt;
  return found->second->entry;
}

bool ResponseStore::remove(const std::string& id, const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end() || found->second->entry.key != key) return false;
  drop(found->second);
  return true;
}

}  // namespace atom::server
