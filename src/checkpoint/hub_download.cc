#include "checkpoint/hub_download.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text_util.h"
#include "checkpoint/blob_writer.h"
#include "checkpoint/http.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/hub_select.h"
#include "checkpoint/json_file.h"
#include "checkpoint/shard_index.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxListingBytes = int64_t{64} << 20;
constexpr int64_t kMaxFileBytes = int64_t{1} << 44;
constexpr int64_t kMaxWaitUs = 8'000'000;
constexpr int64_t kProgressGapUs = 100'000;

// What one file of the repository is, from a HEAD request.
struct RemoteFile {
  std::string name;
  std::string etag;
  int64_t bytes = -1;
};

std::string unquote_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

bool is_safe_etag(std::string_view etag) {
  return !etag.empty() && etag.size() <= 200 && etag.front() != '.' &&
         std::all_of(etag.begin(), etag.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                  c == '_' || c == '.';
         });
}

// The first reply that knows the file: the hub answers for large files with a redirect that carries their
// size and hash, and the place it points to is not asked.
bool describes_file(const HttpReply& reply) { return !reply.header("x-linked-etag").empty(); }

class Download {
 public:
  Download(const HubId& id, const HubOptions& options)
      : id_(id), options_(options), cache_(options.cache, id.repo) {}

  fs::path run() {
    list_files();
    fetch_all(select_small_files(id_, names_));
    const std::vector<std::string> weights = select_weights(id_, names_, shard_index());
    fetch_all(weights);  // last: a snapshot with its weights is complete
    if (id_.revision != commit_) cache_.write_ref(id_.revision, commit_);
    const fs::path snapshot = cache_.snapshot(commit_);
    report(true);
    return weights.size() == 1 && weights[0].ends_with(".gguf") ? snapshot / weights[0] : snapshot;
  }

 private:
  // Runs fn until it succeeds, waiting longer after each transient failure. `progress_of` tells how far the
  // work is: a step forward starts the count anew.
  template <class Fn>
  auto with_retries(const Fn& fn, const std::function<int64_t()>& progress_of = nullptr) {
    int64_t wait_us = options_.retry_wait_us;
    int64_t reached = progress_of ? progress_of() : 0;
    for (int left = options_.retries;;) {
      try {
        return fn();
      } catch (const TransientError& error) {
        if (progress_of && progress_of() > reached) {
          reached = progress_of();
          left = options_.retries;
          wait_us = options_.retry_wait_us;
        }
        if (stop_ || left-- <= 0) {
          throw failed("{}; gave up after {} attempts", error.message(), options_.retries + 1);
        }
        log_warning("{}; trying again", error.message());
        sleep_us(std::max(wait_us, error.wait_us));
        wait_us = std::min(wait_us * 2, kMaxWaitUs);
      }
    }
  }

  void sleep_us(int64_t us) const {
    for (const int64_t end = now_us() + us; now_us() < end && !stop_;) {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(us, 50'000)));
    }
  }

  HttpClient client() const { return HttpClient(options_.endpoint, options_.token); }

  std::string file_url(std::string_view name) const {
    return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, id_.repo, commit_, url_escape(name, "/"));
  }

  // Throws for a reply that is not a success.
  void require_ok(const HttpReply& reply, std::string_view what) const {
    if (reply.status >= 200 && reply.status < 300) return;
    const std::string code = reply.header("x-error-code");
    std::string said = printable(reply.header("x-error-message"));
    if (!said.empty()) said = " (" + said + ")";
    const std::string repo_url = fmt::format("{}/{}", options_.endpoint, id_.repo);
    if (code == "GatedRepo") {
      throw invalid(
          "{}: access to this model is gated: accept its terms at {} and set HF_TOKEN to a token of "
          "that account{}",
          id_.repo, repo_url, said);
    }
    if (code == "RevisionNotFound") {
      throw invalid("{}: there is no revision {}{}", id_.repo, id_.revision, said);
    }
    if (code == "EntryNotFound") throw invalid("{}: there is no file {}{}", id_.repo, what, said);
    if (code == "RepoNotFound" || reply.status == 404) {
      throw invalid(
          "{}: no such model at {}, or it is private: check the name{}{}", id_.repo, options_.endpoint,
          options_.token ? " and the rights of the token" : ", or set HF_TOKEN if you have access", said);
    }
    if (reply.status == 401 || reply.status == 403) {
      throw invalid("{}: access refused (HTTP {}): {}{}", id_.repo, reply.status,
                    options_.token ? "the token is not valid or has no right to read this model"
                                   : "set HF_TOKEN to a token with access",
                    said);
    }
    throw failed("{}: {}: unexpected HTTP status {}{}", id_.repo, what, reply.status, said);
  }

  void list_files() {
    const std::string url =
        fmt::format("{}/api/models/{}/revision/{}", options_.endpoint, id_.repo, url_escape(id_.revision));
    HttpClient http = client();
    const HttpReply reply = with_retries([&] { return http.get(url, kMaxListingBytes); });
    require_ok(reply, "the list of files");
    const Json listing = parse_json(reply.body, url);
    if (!listing.is_object() || !listing.contains("sha") || !listing["sha"].is_string() ||
        !is_commit_hash(listing["sha"].get<std::string>()) || !listing.contains("siblings") ||
        !listing["siblings"].is_array()) {
      throw failed("{}: the answer is not a list of files", url);
    }
    commit_ = listing["sha"];
    for (const Json& item : listing["siblings"]) {
      if (!item.is_object() || !item.contains("rfilename") || !item["rfilename"].is_string()) {
        throw failed("{}: the answer is not a list of files", url);
      }
      std::string name = item["rfilename"];
      if (!is_safe_repo_path(name)) {
        throw invalid("{}: unsafe file name {} in the repository; refused", id_.repo, printable(name));
      }
      names_.insert(std::move(name));
    }
  }

  std::optional<std::string> shard_index() const {
    if (!names_.contains(kIndexFileName)) return std::nullopt;
    return read_checkpoint_text(cache_.snapshot(commit_) / kIndexFileName, kMaxShardIndexBytes);
  }

  // Runs fn(i, client) for i in [0, n) on up to `parallel` threads; throws the first error.
  template <class Fn>
  void in_parallel(size_t n, const Fn& fn) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::optional<Error> first;
    const auto work = [&] {
      try {
        HttpClient http = client();
        for (size_t i; !stop_ && (i = next.fetch_add(1)) < n;) fn(i, http);
      } catch (const std::exception& e) {
        const auto* error = dynamic_cast<const Error*>(&e);
        std::lock_guard lock(mutex);
        if (!first) first = error != nullptr ? *error : failed("{}: {}", id_.repo, e.what());
        stop_ = true;
      }
    };
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min<size_t>(std::max(1, options_.parallel), n); ++i)
      threads.emplace_back(work);
    work();
    threads.clear();  // joins
    if (first) throw *first;
  }

  void fetch_all(const std::vector<std::string>& names) {
    std::vector<RemoteFile> files(names.size());
    in_parallel(names.size(), [&](size_t i, HttpClient& http) { files[i] = describe(names[i], http); });
    int64_t missing = 0;
    for (const RemoteFile& file : files) {
      total_ += file.bytes;
      if (!has_blob(file)) missing += file.bytes;
    }
    total_files_ += static_cast<int>(files.size());
    fs::create_directories(cache_.blob("x").parent_path());
    if (const auto space = fs::space(options_.cache); static_cast<int64_t>(space.available) < missing) {
      throw failed("{}: {} to download but only {} free; make room or set HF_HUB_CACHE",
                   options_.cache.string(), format_bytes(missing),
                   format_bytes(static_cast<int64_t>(space.available)));
    }
    in_parallel(files.size(), [&](size_t i, HttpClient& http) { fetch(files[i], http); });
  }

  RemoteFile describe(const std::string& name, HttpClient& http) {
    const std::string url = file_url(name);
    const HttpReply reply = with_retries([&] { return http.head(url, describes_file); });
    if (!describes_file(reply)) require_ok(reply, name);
    RemoteFile file{name, unquote_etag(reply.header("x-linked-etag")), -1};
    std::string size = reply.header("x-linked-size");
    if (file.etag.empty()) {
      file.etag = unquote_etag(reply.header("etag"));
      size = reply.header("content-length");
    }
    if (!is_safe_etag(file.etag)) throw failed("{}: the server gives no usable ETag", url);
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), file.bytes);
    if (error != std::errc() || end != size.data() + size.size() || file.bytes < 0 ||
        file.bytes > kMaxFileBytes) {
      throw failed("{}: the server gives no usable size", url);
    }
    return file;
  }

  bool has_blob(const RemoteFile& file) const {
    std::error_code error;
    const auto size = fs::file_size(cache_.blob(file.etag), error);
    return !error && static_cast<int64_t>(size) == file.bytes;
  }

  void fetch(const RemoteFile& file, HttpClient& http) {
    int64_t shown = 0;  // bytes of this file that bytes_ holds
    if (!has_blob(file)) {
      const FileLock lock(cache_.lock_path(file.etag), [&] {
        log_info("{}: another process downloads {}; waiting", id_.repo, file.name);
      });
      if (!has_blob(file)) fetch_blob(file, http, shown);
    }
    cache_.link(commit_, file.name, file.etag);
    bytes_ += file.bytes - shown;
    ++done_files_;
    report(false);
  }

  void fetch_blob(const RemoteFile& file, HttpClient& http, int64_t& shown) {
    BlobWriter blob(cache_.incomplete_blob(file.etag), file.bytes, file.etag);
    with_retries([&] { fetch_rest(file, http, blob, shown); }, [&] { return blob.position(); });
    blob.publish(cache_.blob(file.etag));
  }

  // Continues the blob where it ends. Throws TransientError when bytes are missing or wrong at the end.
  void fetch_rest(const RemoteFile& file, HttpClient& http, BlobWriter& blob, int64_t& shown) {
    if (blob.position() < file.bytes) {
      const auto start = [&](const HttpReply& reply) {
        if (reply.status == 200) blob.restart();
        return reply.status == 200 ||
               reply.header("content-range").starts_with(fmt::format("bytes {}-", blob.position()));
      };
      const auto data = [&](std::string_view bytes) {
        if (stop_ || !blob.append(bytes)) return false;
        bytes_ += blob.position() - shown;
        shown = blob.position();
        report(false);
        return true;
      };
      const HttpReply reply = http.stream(file_url(file.name), blob.position(), start, data);
      if (stop_) throw failed("{}: stopped", id_.repo);
      if (reply.status == 416) {
        blob.restart();
      } else {
        require_ok(reply, file.name);
      }
    }
    if (const std::string problem = blob.problem(); !problem.empty()) {
      throw TransientError(Errc::failed, fmt::format("{}: {}: {}", id_.repo, file.name, problem));
    }
  }

  void report(bool last) {
    if (!options_.progress) return;
    std::lock_guard lock(report_mutex_);
    if (!last && now_us() - reported_us_ < kProgressGapUs) return;
    reported_us_ = now_us();
    options_.progress({bytes_, total_, done_files_, total_files_});
  }

  const HubId& id_;
  const HubOptions& options_;
  HubCache cache_;
  std::string commit_;
  FileNames names_;  // every file of the repository
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int> done_files_{0};
  int64_t total_ = 0;  // written between the parallel phases only
  int total_files_ = 0;
  std::mutex report_mutex_;
  int64_t reported_us_ = 0;
};

}  // namespace

fs::path download_model(const HubId& id, const HubOptions& options) {
  try {
    return Download(id, options).run();
  } catch (const fs::filesystem_error& error) {
    throw failed("{}: {}", options.cache.string(), error.what());
  }
}

}  // namespace atom
