// atom serve: the model behind HTTP, in the forms of OpenAI's and Anthropic's clients.
#include <fmt/core.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text_util.h"
#include "cli/command.h"
#include "cli/inspection.h"
#include "engine/engine_thread.h"
#include "runtime/machine_bound.h"
#include "server/http_server.h"
#include "server/service.h"

namespace atom::cli {
namespace {

struct Flags {
  ModelOptions model;
  server::ServiceOptions service;
  server::HttpLimits http;
  std::string host = "127.0.0.1";
  int port = 8000;
  int http_threads = 4;
  std::vector<std::string> names;
  std::string api_key_file;
  int64_t drain_seconds = 25;
  bool measure_bandwidth = false;
};

constexpr size_t kLeastKey = 8;
constexpr int64_t kMostSeconds = 1'000'000'000;

// One key a line; blank lines and those that begin with # are comments, blanks around a key are not part of
// it.
void read_keys(const std::string& path, std::vector<std::string>& keys) {
  std::ifstream file(path);
  if (!file) throw invalid("--api-key-file {}: cannot be read", path);
  const size_t before = keys.size();
  int number = 1;
  for (std::string line; std::getline(file, line); ++number) {
    const std::string_view key = trimmed(line);
    if (key.empty() || key.front() == '#') continue;
    if (key.size() < kLeastKey)
      throw invalid("--api-key-file {}: line {}: a key needs {} characters at least", path, number,
                    kLeastKey);
    keys.emplace_back(key);
  }
  if (keys.size() == before) throw invalid("--api-key-file {}: holds no key", path);
}

// "*", or a scheme and a host, perhaps with a port, as browsers send it.
CLI::Validator origin() {
  return {[](const std::string& text) -> std::string {
            const size_t host = text.find("://");
            const bool whole = host != std::string::npos && host > 0 && host + 3 < text.size() &&
                               text.find('/', host + 3) == std::string::npos;
            return text == "*" || whole
                       ? ""
                       : fmt::format("\"{}\" is not an origin such as https://example.com", text);
          },
          ""};
}

// A connection is a descriptor: takes as many as the system allows.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// SIGTERM and SIGINT, taken by whoever waits instead of by a handler. Must be made before any thread is.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGTERM);
    ::sigaddset(&set_, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // True if one came within the time.
  bool wait(int64_t milliseconds) const {
    const timespec time{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
    return ::sigtimedwait(&set_, nullptr, &time) > 0;
  }

 private:
  sigset_t set_;
};

// The name that requests use: the folder's, or what was typed where that is a hub id.
std::string default_name(const Flags& f, const LoadedModel& model) {
  const std::filesystem::path root = model.files().root;
  if (!f.model.model.empty() && !std::filesystem::exists(f.model.model)) return f.model.model;
  if (root.extension() == ".gguf") return root.stem().string();
  return root.has_filename() ? root.filename().string() : root.parent_path().filename().string();
}

// What the checkpoint says about how its answers are written.
void set_response_format(server::ServedModel& served, const LoadedModel& model) {
  const text::Tokenizer* tokenizer = model.text().tokenizer_if();
  const auto token_id = [tokenizer](std::string_view text) {
    return tokenizer == nullptr ? std::nullopt : tokenizer->token_to_id(text);
  };
  const Json names = model.files().config.value("architectures", Json::array());
  const std::string architecture = names.is_array() && !names.empty() && names[0].is_string() ? names[0] : "";
  const auto has_token = [&](std::string_view text) { return token_id(text).has_value(); };
  served.format =
      text::detect_response_format(model.files().chat_template.value_or(""), has_token, architecture);
  if (tokenizer != nullptr) {
    served.grammars = std::make_shared<text::GrammarCache>(*tokenizer, served.format);
  }
  for (const std::string& text : text::visible_special_tokens(served.format)) {
    if (const auto id = token_id(text)) served.visible_ids.push_back(*id);
  }
  for (const std::string& text : text::turn_end_tokens(served.format)) {
    if (const auto id = token_id(text)) served.turn_end_ids.push_back(*id);
  }
}

server::ServedModel describe(const Flags& f, LoadedModel& model, EngineThread& engine) {
  server::ServedModel served;
  served.names = f.names.empty() ? std::vector<std::string>{default_name(f, model)} : f.names;
  served.created = static_cast<int64_t>(std::time(nullptr));
  served.text = &model.text();
  served.engine = &engine;
  served.max_model_len = model.engine().max_model_len();
  served.vocab = model.workers().vocab();
  served.default_sampling = model.default_sampling();
  // The protocols' own default where the checkpoint suggests nothing.
  const Json& suggested = model.files().generation_config;
  if (!suggested.is_object() || (!suggested.contains("do_sample") && !suggested.contains("temperature"))) {
    served.default_sampling.temperature = 1;
  }
  set_response_format(served, model);
  served.inspection = to_json(inspect(model.files(), std::nullopt));
  const Json& config = model.files().config;
  const auto from_config = [&](const char* key) {
    return config.contains(key) ? config[key] : Json(nullptr);
  };
  served.about = {{"architecture", from_config("architectures")},
                  {"layers", from_config("num_hidden_layers")},
                  {"hidden_size", from_config("hidden_size")},
                  {"heads", from_config("num_attention_heads")},
                  {"kv_heads", from_config("num_key_value_heads")},
                  {"vocabulary", served.vocab},
                  {"dtype", model.dtype()},
                  {"weight_bytes", model.workers().weight_bytes()},
                  {"weight_bytes_per_step", model.workers().weight_bytes_per_step()},
                  {"cache_bytes", model.workers().cache_bytes()},
                  {"ranks", model.workers().ranks()},
                  {"chat", model.text().has_chat_template() && model.text().has_tokenizer()},
                  {"response_format", served.format.reason}};
  return served;
}

// Waits until the generations under way have ended, the time is over, or a second signal comes.
void drain(const Flags& f, server::Service& service, server::HttpServer& http, const Signals& signals) {
  service.life().drain();
  http.close_after_answers();
  const int64_t start = now_us();
  say("atom: draining, {} requests under way\n", service.in_flight().size());
  while (service.in_flight().size() > 0 && seconds_since(start) < static_cast<double>(f.drain_seconds)) {
    if (signals.wait(50)) break;
  }
  service.in_flight().end_all(server::ApiError(503, "server_stopped", "the server is stopping"));
  signals.wait(100);  // for the last answers to leave
}

// Waits for the step being computed. One that hangs cannot be waited for, and another signal says not to: the
// process just ends.
void stop(const Flags& f, EngineThread& engine, const Signals& signals) {
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    engine.stop();
    stopped = true;
  });
  while (!stopped) {
    const int64_t started = engine.beat().step_started_us;
    const bool hangs = started != 0 && seconds_since(started) > f.service.stuck_seconds;
    if (signals.wait(20) || (hangs && !stopped)) std::_Exit(1);
  }
  stopper.join();
}

void run(Flags f) {
  if (!f.api_key_file.empty()) read_keys(f.api_key_file, f.service.api_keys);
  if (const char* key = std::getenv("ATOM_API_KEY"); key != nullptr && *key != '\0')
    f.service.api_keys.push_back(key);
  for (const std::string& key : f.service.api_keys) {
    if (key.size() < kLeastKey) throw invalid("--api-key: a key needs {} characters at least", kLeastKey);
  }
  set_log_level(LogLevel::info);
  raise_descriptor_limit();
  const Signals signals;
  server::Service service(f.service);
  std::atomic<const server::HttpServer*> listening{nullptr};
  service.watch_connections([&listening] {
    const server::HttpServer* http = listening;
    return http == nullptr ? 0 : http->connections();
  });
  server::HttpServer http(f.host, f.port, f.http_threads, f.http, service);
  listening = &http;
  const bool v6 = f.host.find(':') != std::string::npos;
  say("atom: listening on http://{}:{}\n", v6 ? "[" + f.host + "]" : f.host, http.port());

  std::unique_ptr<LoadedModel> model;
  std::exception_ptr error;
  std::atomic<bool> loaded{false};
  std::thread loader([&] {
    try {
      model = std::make_unique<LoadedModel>(f.model, [&](const char* phase, int64_t done, int64_t total) {
        service.life().progress(phase, done, total);
      });
    } catch (...) {
      error = std::current_exception();
    }
    loaded = true;
  });
  while (!loaded) {
    // Loading cannot be interrupted, and nothing is under way: the process just ends.
    if (signals.wait(50)) std::_Exit(0);
  }
  loader.join();
  if (error) std::rethrow_exception(error);

  EngineThread engine(model->engine());
  server::ServedModel served = describe(f, *model, engine);
  const double bandwidth =
      f.measure_bandwidth ? measure_read_bandwidth(model->device(), f.model.thread_count()) : 0;
  if (bandwidth > 0) served.about["memory_bytes_per_second"] = bandwidth;
  service.serve(served, {.weight_bytes = model->workers().weight_bytes(),
                         .cache_bytes = model->workers().cache_bytes(),
                         .weight_bytes_per_step = model->workers().weight_bytes_per_step(),
                         .memory_bytes_per_second = bandwidth});
  say("atom: {} is ready; syntax of its answers: {}\n", served.name(), served.format.reason);
  while (!signals.wait(500)) {
    if (engine.beat().failed) {
      service.in_flight().end_all(server::ApiError(500, "engine_failed", engine.failure()));
      signals.wait(200);
      engine.stop();
      http.stop();
      throw failed("the engine has failed: {}", engine.failure());
    }
  }
  drain(f, service, http, signals);
  stop(f, engine, signals);
  http.stop();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("serve", "an HTTP server for OpenAI's and Anthropic's clients, and a chat page");
  add_model_flags(verb, f->model);
  verb->add_option("--host", f->host, "address to listen on; 0.0.0.0 for all")->check(not_empty());
  verb->add_option("--port", f->port, "port; 0: any free one")->check(CLI::Range(0, 65535));
  verb->add_option("--served-model-name", f->names,
                   "name that requests use (may be repeated); default: the folder's")
      ->check(not_empty());
  verb->add_option("--api-key", f->service.api_keys, "key that clients must send (may be repeated)");
  verb->add_option("--api-key-file", f->api_key_file, "file with one key a line");
  verb->add_option("--cors-origin", f->service.cors_origins,
                   "origin whose pages may call this server, or * (may be repeated)")
      ->check(origin());
  verb->add_option("--http-threads", f->http_threads, "threads for connections, JSON and tokenizing")
      ->check(CLI::Range(1, 256));
  verb->add_option("--max-connections", f->http.max_connections, "open connections")->check(at_least(1));
  verb->add_option("--max-body-bytes", f->http.max_body_bytes, "largest request body, for example 8MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1));
  verb->add_option("--header-seconds", f->http.header_seconds, "for a client to send its headers")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--body-seconds", f->http.body_seconds, "for a client to send a body")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--keep-alive-seconds", f->http.keep_alive_seconds, "that a connection may be idle")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--write-seconds", f->http.write_seconds, "that a client may leave what it is sent unread")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--max-requests-per-key", f->service.max_per_key,
                   "generations under way per API key; 0: no limit")
      ->check(at_least(0));
  verb->add_option("--max-waiting", f->service.max_waiting, "requests that may wait in the engine")
      ->check(at_least(1));
  verb->add_option("--max-seconds", f->service.max_seconds, "that a generation may take")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--stuck-seconds", f->service.stuck_seconds,
                   "after which a step of the engine counts as hung")
      ->check(at_least(1, kMostSeconds));
  verb->add_option("--drain-seconds", f->drain_seconds, "for requests under way to end after SIGTERM")
      ->check(at_least(0, kMostSeconds));
  verb->add_flag("--measure-bandwidth", f->measure_bandwidth,
                 "measure at the start what memory can deliver, for the fraction of the bound in /metrics");
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
