// Hub: what --model means, the cache, and downloads from a small server in this process.
#include "checkpoint/hub.h"

#include <openssl/sha.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/blob_writer.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/hub_select.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/test_server.h"

namespace atom {
namespace {

using namespace testing;
namespace fs = std::filesystem;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

std::string sha256(const std::string& text) {
  unsigned char digest[32];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string file_text(const fs::path& path) { return read_file(path, 1 << 26); }

// One repository, served the way the hub does: small files directly, *.safetensors and *.gguf through a
// redirect to another address that checks no token.
class FakeHub {
 public:
  FakeHub()
      : cdn_([this](const auto& r) { return blob(r); }), hub_([this](const auto& r) { return answer(r); }) {
    files["config.json"] = R"({"architectures": ["X"]})";
    files["tokenizer.json"] = "{}";
    files["model.safetensors"] = std::string(300'000, 'w');
    files["consolidated.safetensors"] = "twice";
    files["pytorch_model.bin"] = "pickle";
    files["README.md"] = "hello";
    write_model();
  }

  // A safetensors file that can be opened.
  void write_model() {
    std::vector<float> data(75'000, 1.5f);
    const TestFolder scratch;
    const NamedTensor tensors[] = {{"a", make_tensor(data.data(), DType::f32, {75'000})}};
    write_safetensors(scratch / "m", tensors);
    files["model.safetensors"] = file_text(scratch / "m");
  }

  HubOptions options(const TestFolder& folder) const {
    HubOptions out;
    out.endpoint = hub_.url();
    out.cache = folder / "hub";
    out.retry_wait_us = 1000;
    return out;
  }

  int count(const TestServer& server, std::string_view part, std::string_view method = "GET") const {
    int n = 0;
    for (const ServerRequest& r : server.requests()) {
      n += r.method == method && r.path.find(part) != std::string::npos;
    }
    return n;
  }

  std::map<std::string, std::string> files;
  std::string revision = "main";
  std::function<std::optional<ServerReply>(const ServerRequest&)> before_hub,
      before_cdn;  // may answer instead
  bool ranges = true;
  std::string wrong_bytes;  // sent in place of a blob's content

  TestServer cdn_, hub_;

 private:
  static bool is_large(const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".gguf");
  }

  ServerReply answer(const ServerRequest& request) {
    if (before_hub) {
      if (auto reply = before_hub(request)) return *reply;
    }
    if (request.path == "/api/models/org/name/revision/" + revision) {
      Json listing = {{"sha", kCommit}, {"siblings", Json::array()}};
      for (const auto& [name, content] : files) listing["siblings"].push_back({{"rfilename", name}});
      return {200, {}, listing.dump()};
    }
    const std::string prefix = std::string("/org/name/resolve/") + kCommit + "/";
    if (!request.path.starts_with(prefix)) {
      return {404, {{"X-Error-Code", "RepoNotFound"}, {"X-Error-Message", "Repository not found"}}, ""};
    }
    const std::string name = request.path.substr(prefix.size());
    const auto it = files.find(name);
    if (it == files.end()) return {404, {{"X-Error-Code", "EntryNotFound"}}, ""};
    if (!is_large(name)) {
      return {200, {{"ETag", "\"small-" + name + "\""}, {"X-Repo-Commit", kCommit}}, it->second};
    }
    return {302,
            {{"Location", cdn_.url() + "/blob/" + name},
             {"X-Linked-Etag", "\"" + sha256(it->second) + "\""},
             {"X-Linked-Size", std::to_string(it->second.size())},
             {"X-Repo-Commit", kCommit}},
            ""};
  }

  ServerReply blob(const ServerRequest& request) {
    if (before_cdn) {
      if (auto reply = before_cdn(request)) return *reply;
    }
    std::string body = files[request.path.substr(6)];
    if (!wrong_bytes.empty()) body = wrong_bytes;
    const auto range = request.headers.find("range");
    if (!ranges || range == request.headers.end()) return {200, {}, body};
    const size_t begin = std::stoul(range->second.substr(6));
    const std::string span = fmt::format("bytes {}-{}/{}", begin, body.size() - 1, body.size());
    return {206, {{"Content-Range", span}}, body.substr(begin)};
  }
};

TEST(HubId, KnowsItsForms) {
  EXPECT_EQ(parse_hub_id("org/name")->repo, "org/name");
  EXPECT_EQ(parse_hub_id("org/name")->revision, "main");
  EXPECT_EQ(parse_hub_id("org/name@refs/pr/1")->revision, "refs/pr/1");
  const auto gguf = parse_hub_id("Qwen/Qwen3-0.6B-GGUF@v1:q/x.gguf");
  EXPECT_EQ(gguf->repo, "Qwen/Qwen3-0.6B-GGUF");
  EXPECT_EQ(gguf->revision, "v1");
  EXPECT_EQ(gguf->filename, "q/x.gguf");
  for (const char* other : {"", "name", "/a/b", "./a", "../a", "a/b/c", "a/..", "a//b", "a/b@", "a/b@../x",
                            "a/b:", "a/b:x.bin", "a/b:../x.gguf", "a b/c", "-a/b", "a/b--c"}) {
    EXPECT_FALSE(parse_hub_id(other)) << other;
  }
}

TEST(Hub, EnvironmentDecides) {
  const TestFolder folder;
  ::setenv("HF_HOME", folder.path().c_str(), 1);
  ::setenv("HF_ENDPOINT", "http://mirror/", 1);
  ::unsetenv("HF_HUB_CACHE");
  ::unsetenv("HF_TOKEN");
  folder.write("token", "hf_file\n");
  HubOptions options = hub_options_from_environment();
  EXPECT_EQ(options.endpoint, "http://mirror");
  EXPECT_EQ(options.cache, folder / "hub");
  EXPECT_EQ(options.token, "hf_file");
  EXPECT_FALSE(options.offline);
  ::setenv("HF_TOKEN", "hf_env", 1);
  ::setenv("HF_HUB_CACHE", "/elsewhere", 1);
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  options = hub_options_from_environment();
  EXPECT_EQ(options.token, "hf_env");
  EXPECT_EQ(options.cache, "/elsewhere");
  EXPECT_TRUE(options.offline);
  ::setenv("HF_TOKEN", "two\nlines", 1);
  EXPECT_ERROR(hub_options_from_environment(), "HF_TOKEN: the access token holds");
  ::setenv("HF_ENDPOINT", "ftp://x", 1);
  EXPECT_ERROR(hub_options_from_environment(), "HF_ENDPOINT: ftp://x");
  for (const char* name : {"HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"})
    ::unsetenv(name);
}

TEST(Hub, ExistingPathsAreTakenAsTheyAre) {
  const TestFolder folder;
  HubOptions options;
  EXPECT_EQ(resolve_model(folder.path().string(), options), folder.path());
  EXPECT_ERROR(resolve_model("/no/such/folder", options), "not a Hugging Face id");
}

TEST(Hub, DownloadsWhatAModelNeedsIntoTheStandardLayout) {
  const TestFolder folder;
  FakeHub hub;
  HubOptions options = hub.options(folder);
  HubProgress last;
  options.progress = [&](const HubProgress& p) { last = p; };
  const fs::path path = resolve_model("org/name", options);
  const fs::path repo = folder / "hub/models--org--name";
  EXPECT_EQ(path, repo / "snapshots" / kCommit);
  EXPECT_EQ(file_text(path / "config.json"), hub.files["config.json"]);
  EXPECT_EQ(file_text(path / "model.safetensors"), hub.files["model.safetensors"]);
  EXPECT_EQ(file_text(repo / "refs/main"), kCommit);
  EXPECT_TRUE(fs::is_symlink(path / "model.safetensors"));
  EXPECT_EQ(fs::read_symlink(path / "model.safetensors"),
            fs::path("../../blobs") / sha256(hub.files["model.safetensors"]));
  for (const char* other : {"consolidated.safetensors", "pytorch_model.bin", "README.md"}) {
    EXPECT_FALSE(fs::exists(path / other)) << other;
  }
  EXPECT_EQ(last.bytes, last.total);
  EXPECT_EQ(last.files, 3);
  EXPECT_EQ(last.files_done, 3);
  EXPECT_GT(last.total, 300'000);
  for (const auto& entry : fs::directory_iterator(repo / "blobs")) {
    EXPECT_NE(entry.path().extension(), ".incomplete");
  }
  // The second time nothing is asked; offline neither.
  hub.hub_.forget_requests();
  EXPECT_EQ(resolve_model("org/name", options), path);
  options.offline = true;
  EXPECT_EQ(resolve_model("org/name", options), path);
  EXPECT_EQ(resolve_model(std::string("org/name@") + kCommit, options), path);
  EXPECT_TRUE(hub.hub_.requests().empty());
}

TEST(Hub, OfflineWithoutACompleteSnapshotIsAnError) {
  const TestFolder folder;
  FakeHub hub;
  HubOptions options = hub.options(folder);
  options.offline = true;
  EXPECT_ERROR(resolve_model("org/name", options), "HF_HUB_OFFLINE forbids");
  EXPECT_TRUE(hub.hub_.requests().empty());
}

TEST(Hub, IncompleteSnapshotIsCompleted) {
  const TestFolder folder;
  FakeHub hub;
  const fs::path path = resolve_model("org/name", hub.options(folder));
  fs::remove(path / "model.safetensors");
  hub.hub_.forget_requests();
  EXPECT_EQ(resolve_model("org/name", hub.options(folder)), path);
  EXPECT_TRUE(fs::exists(path / "model.safetensors"));
  EXPECT_EQ(hub.count(hub.cdn_, "/blob/"), 1);  // the blob was still there: only the link is made anew
}

TEST(Hub, FetchesTheShardsOfTheIndexAndRefusesUnsafeOnes) {
  const TestFolder folder;
  FakeHub hub;
  hub.files["part-1.safetensors"] = hub.files["model.safetensors"];
  hub.files["part-2.safetensors"] = hub.files["model.safetensors"] + "2";
  hub.files["model.safetensors.index.json"] =
      R"({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}})";
  const fs::path path = resolve_model("org/name", hub.options(folder));
  EXPECT_TRUE(fs::exists(path / "part-1.safetensors"));
  EXPECT_TRUE(fs::exists(path / "part-2.safetensors"));
  EXPECT_FALSE(fs::exists(path / "model.safetensors"));

  const TestFolder other;
  hub.files["model.safetensors.index.json"] = R"({"weight_map": {"a": "../../x.safetensors"}})";
  EXPECT_ERROR(resolve_model("org/name", hub.options(other)), "unsafe file name");
  hub.files["model.safetensors.index.json"] = R"({"weight_map": {"a": "part-3.safetensors"}})";
  const TestFolder third;
  EXPECT_ERROR(resolve_model("org/name", hub.options(third)),
               "part-3.safetensors, which is not in the repository");
}

TEST(Hub, BrokenConnectionsResumeWhereTheyEnded) {
  const TestFolder folder;
  FakeHub hub;
  std::atomic<int> calls{0};
  std::vector<std::string> ranges;
  hub.before_cdn = [&](const ServerRequest& request) -> std::optional<ServerReply> {
    const auto range = request.headers.find("range");
    ranges.push_back(range == request.headers.end() ? "" : range->second);
    if (++calls > 2) return std::nullopt;
    const std::string& all = hub.files["model.safetensors"];
    const size_t begin = calls == 1 ? 0 : std::stoul(ranges.back().substr(6));
    ServerReply reply{calls == 1 ? 200 : 206, {}, all.substr(begin), 100'000};
    reply.headers.emplace_back("Content-Range",
                               fmt::format("bytes {}-{}/{}", begin, all.size() - 1, all.size()));
    return reply;
  };
  const fs::path path = resolve_model("org/name", hub.options(folder));
  EXPECT_EQ(file_text(path / "model.safetensors"), hub.files["model.safetensors"]);
  EXPECT_EQ(ranges, (std::vector<std::string>{"", "bytes=100000-", "bytes=200000-"}));
}

TEST(Hub, PartialFileOfAnEarlierRunIsResumed) {
  for (const bool ranges : {true, false}) {
    const TestFolder folder;
    FakeHub hub;
    hub.ranges = ranges;
    const std::string& all = hub.files["model.safetensors"];
    folder.write("hub/models--org--name/blobs/" + sha256(all) + ".incomplete", all.substr(0, 123'456));
    const fs::path path = resolve_model("org/name", hub.options(folder));
    EXPECT_EQ(file_text(path / "model.safetensors"), all);
    EXPECT_EQ(hub.cdn_.requests().at(0).headers.at("range"), "bytes=123456-");
  }
}

TEST(Hub, WrongContentIsNeverPublished) {
  const TestFolder folder;
  FakeHub hub;
  hub.wrong_bytes = std::string(hub.files["model.safetensors"].size(), 'x');
  HubOptions options = hub.options(folder);
  options.retries = 2;
  EXPECT_ERROR(resolve_model("org/name", options), "SHA-256 is");
  EXPECT_FALSE(fs::exists(folder / "hub/models--org--name/blobs" / sha256(hub.files["model.safetensors"])));
  EXPECT_FALSE(fs::exists(folder / "hub/models--org--name/refs/main"));
  // A damaged partial file heals by itself.
  hub.wrong_bytes.clear();
  folder.write("hub/models--org--name/blobs/" + sha256(hub.files["model.safetensors"]) + ".incomplete",
               std::string(1000, 'x'));
  EXPECT_EQ(file_text(resolve_model("org/name", options) / "model.safetensors"),
            hub.files["model.safetensors"]);
}

TEST(Hub, LongerContentThanAnnouncedIsRefused) {
  const TestFolder folder;
  FakeHub hub;
  hub.wrong_bytes = hub.files["model.safetensors"] + "more";
  HubOptions options = hub.options(folder);
  options.retries = 1;
  EXPECT_ERROR(resolve_model("org/name", options), "gave up");
  EXPECT_FALSE(fs::exists(folder / "hub/models--org--name/refs/main"));
}

TEST(Hub, TokenGoesToTheEndpointOnly) {
  const TestFolder folder;
  FakeHub hub;
  HubOptions options = hub.options(folder);
  options.token = "hf_secret";
  resolve_model("org/name", options);
  for (const ServerRequest& r : hub.hub_.requests()) {
    ASSERT_TRUE(r.headers.contains("authorization")) << r.path;
    EXPECT_EQ(r.headers.at("authorization"), "Bearer hf_secret");
  }
  ASSERT_FALSE(hub.cdn_.requests().empty());
  for (const ServerRequest& r : hub.cdn_.requests())
    EXPECT_FALSE(r.headers.contains("authorization")) << r.path;
}

TEST(Hub, TransientErrorsAreRepeated) {
  const TestFolder folder;
  FakeHub hub;
  std::atomic<int> bad{0};
  hub.before_hub = [&](const ServerRequest&) -> std::optional<ServerReply> {
    const int n = bad++;
    if (n == 0) return ServerReply{503, {}, "busy"};
    if (n == 2) return ServerReply{429, {{"Retry-After", "0"}}, ""};
    return std::nullopt;
  };
  EXPECT_TRUE(fs::exists(resolve_model("org/name", hub.options(folder)) / "config.json"));
  HubOptions options = hub.options(folder);
  options.retries = 2;
  hub.before_hub = [](const ServerRequest&) { return std::optional(ServerReply{500, {}, ""}); };
  EXPECT_ERROR(resolve_model("org/name@dev", options), "HTTP status 500; gave up after 3 attempts");
  options.endpoint = "http://127.0.0.1:9";  // nobody listens
  EXPECT_ERROR(resolve_model("org/other", options), "gave up after 3 attempts");
}

TEST(Hub, RefusalsSayWhatToDo) {
  const TestFolder folder;
  FakeHub hub;
  const auto refuse = [&](int status, const char* code, const char* text) {
    hub.before_hub = [=](const ServerRequest&) {
      return std::optional(ServerReply{status, {{"X-Error-Code", code}, {"X-Error-Message", text}}, ""});
    };
  };
  HubOptions options = hub.options(folder);
  refuse(403, "GatedRepo", "Access to model is restricted");
  EXPECT_ERROR(resolve_model("org/name", options), "gated: accept its terms at");
  EXPECT_ERROR(resolve_model("org/name", options), "(Access to model is restricted)");
  refuse(401, "RepoNotFound", "Repository not found");
  EXPECT_ERROR(resolve_model("org/name", options), "no such model");
  EXPECT_ERROR(resolve_model("org/name", options), "set HF_TOKEN");
  refuse(404, "RevisionNotFound", "Invalid rev id");
  EXPECT_ERROR(resolve_model("org/name@v9", options), "there is no revision v9");
  refuse(401, "", "");
  EXPECT_ERROR(resolve_model("org/name", options), "access refused (HTTP 401)");
  options.token = "hf_bad";
  EXPECT_ERROR(resolve_model("org/name", options), "the token is not valid");
  refuse(418, "", "");
  EXPECT_ERROR(resolve_model("org/name", options), "unexpected HTTP status 418");
  hub.before_hub = [](const ServerRequest&) { return std::optional(ServerReply{200, {}, "<html>"}); };
  EXPECT_ERROR(resolve_model("org/name", options), "not valid JSON");
  hub.before_hub = [](const ServerRequest&) { return std::optional(ServerReply{200, {}, "{}"}); };
  EXPECT_ERROR(resolve_model("org/name", options), "not a list of files");
}

TEST(Hub, UnsafeNamesFromTheServerAreRefused) {
  for (const char* name : {"../x.json", "/etc/x", "a/../../x", "a\\b", "a//b", "."}) {
    const TestFolder folder;
    FakeHub hub;
    hub.files[name] = "x";
    EXPECT_ERROR(resolve_model("org/name", hub.options(folder)), "unsafe file name");
  }
  const TestFolder folder;
  FakeHub hub;
  hub.before_hub = [](const ServerRequest& r) -> std::optional<ServerReply> {
    if (r.method != "HEAD") return std::nullopt;
    return ServerReply{200, {{"ETag", "\"../../../x\""}}, "x"};
  };
  EXPECT_ERROR(resolve_model("org/name", hub.options(folder)), "no usable ETag");
}

TEST(Hub, EndlessRedirectsEnd) {
  const TestFolder folder;
  FakeHub hub;
  hub.before_hub = [](const ServerRequest& r) {
    return std::optional(ServerReply{302, {{"Location", r.path + "x"}}, ""});
  };
  EXPECT_ERROR(resolve_model("org/name", hub.options(folder)), "redirects");
}

TEST(Hub, GgufRepositories) {
  const TestFolder folder;
  FakeHub hub;
  hub.files = {{"a-q4.gguf", "GGUF4"}, {"README.md", "x"}};
  const fs::path snapshot = folder / "hub/models--org--name/snapshots" / kCommit;
  EXPECT_EQ(resolve_model("org/name", hub.options(folder)), snapshot / "a-q4.gguf");
  hub.hub_.forget_requests();
  EXPECT_EQ(resolve_model("org/name", hub.options(folder)), snapshot / "a-q4.gguf");
  EXPECT_TRUE(hub.hub_.requests().empty());

  const TestFolder other;
  hub.files["sub/a-q8.gguf"] = "GGUF8";
  EXPECT_ERROR(resolve_model("org/name", hub.options(other)),
               "choose one as org/name:FILE from a-q4.gguf, sub/a-q8.gguf");
  const fs::path chosen = resolve_model("org/name:sub/a-q8.gguf", hub.options(other));
  EXPECT_EQ(file_text(chosen), "GGUF8");
  EXPECT_TRUE(chosen.string().ends_with("sub/a-q8.gguf"));
  EXPECT_ERROR(resolve_model("org/name:a-q5.gguf", hub.options(other)), "did you mean a-q4.gguf?");
  hub.files = {{"pytorch_model.bin", "x"}, {"config.json", "{}"}};
  const TestFolder third;
  EXPECT_ERROR(resolve_model("org/name", hub.options(third)), "safetensors required");
}

TEST(Hub, TwoDownloadsAtOnceShareTheWork) {
  const TestFolder folder;
  FakeHub hub;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const fs::path path = resolve_model("org/name", hub.options(folder));
      EXPECT_EQ(file_text(path / "model.safetensors"), hub.files["model.safetensors"]);
    });
  }
  threads.clear();
  EXPECT_EQ(hub.count(hub.cdn_, "/blob/model.safetensors"), 1);
}

TEST(BlobWriter, KeepsHashAndPositionTogether) {
  const TestFolder folder;
  const std::string text = "hello world";
  BlobWriter blob(folder / "x.incomplete", 11, sha256(text));
  EXPECT_TRUE(blob.append("hello"));
  EXPECT_EQ(blob.problem(), "5 of 11 bytes arrived");
  EXPECT_FALSE(blob.append(" world and more"));
  EXPECT_TRUE(blob.append(" world"));
  EXPECT_EQ(blob.problem(), "");
  blob.publish(folder / "x");
  EXPECT_EQ(file_text(folder / "x"), text);
}

}  // namespace
}  // namespace atom
