// One answer that the engine generates, as an exchange: submits the requests, queues their outputs for the
// connection, and lets a protocol's AnswerWriter put them into words.
#pragma once
#include <memory>
#include <vector>

#include "engine/engine_thread.h"
#include "server/api_error.h"
#include "server/http_message.h"
#include "server/in_flight.h"

namespace atom::server {

// A protocol's form of an answer. Runs on the connection's thread.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // A stream begins when the engine has taken the requests; a whole answer is sent when all have ended.
  virtual bool streams() const = 0;
  // A stream's first bytes.
  virtual void begin(std::string& out) = 0;
  // News of a sample of the `prompt`-th request.
  virtual void take(size_t prompt, OutputDelta&& delta, std::string& out) = 0;
  // Every sample has ended: a stream's last bytes, or the whole answer.
  virtual void end(std::string& out) = 0;
  // The answer ends with an error. In a stream that has begun: its error event; else the reply's body.
  virtual std::string error(const ApiError& error, bool begun) = 0;
  // True once the writer needs no more: what is still being generated is cancelled, and its last news come.
  virtual bool satisfied() const { return false; }
};

struct GenerationPlan {
  std::vector<Request> requests;
  std::unique_ptr<AnswerWriter> writer;
  int64_t deadline_us = 0;             // of the clock now_us(); 0: none
  int64_t max_queued_bytes = 4 << 20;  // that a slow reader of a stream may leave behind before it is cut off
};

std::unique_ptr<Exchange> generate(EngineThread& engine, GenerationPlan plan,
                                   std::shared_ptr<InFlight> in_flight);

}  // namespace atom::server
