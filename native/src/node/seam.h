// The serving end of one stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "node/loop.h"
#include "wire/frames.h"

namespace meshnet {

class Seam;

// Whoever works on what comes down a stream, on the loop's thread.
class SeamHandler {
 public:
  virtual ~SeamHandler() = default;
  virtual void on_request(const std::shared_ptr<Seam>& seam, Request request) = 0;
  // Nothing more will come; called once.
  virtual void on_end(Seam& seam) = 0;
};

// gRPC calls the reactions on threads of its own; each only posts to the loop, where the rest runs.
class Seam : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Serves a stream. gRPC gets the pointer; the object lives until gRPC is done with it and nobody
  // else holds it.
  static Seam* serve(grpc::CallbackServerContext* context, EventLoop* loop, SeamHandler* handler,
                     uint64_t max_bytes);

  // Queues a reply; replies leave in order. Does nothing once the stream has ended.
  void send(const pb::SessionResponse& reply);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  Seam(grpc::CallbackServerContext* context, EventLoop* loop, SeamHandler* handler,
       uint64_t max_bytes);

  void take();
  // The opener has no more to say, or is gone, or said what can't be understood.
  void end(const pb::ShardError& error);
  void write_next();

  grpc::CallbackServerContext* const context_;
  EventLoop* const loop_;
  SeamHandler* const handler_;
  const uint64_t max_bytes_;
  std::shared_ptr<Seam> self_;

  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::deque<grpc::ByteBuffer> replies_;
  bool writing_ = false;
  bool gone_ = false;
  bool finished_ = false;
  std::optional<pb::ShardError> ending_;
};

}  // namespace meshnet
