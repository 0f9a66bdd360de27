// The opening end of one stream, shared by all sessions that go to the same node.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/loop.h"
#include "wire/schema.h"

namespace meshnet {

// A session's ear on a channel; called on the loop's thread.
class ReplyListener {
 public:
  virtual ~ReplyListener() = default;
  // One reply for this session; a token frame is brought as one `on_token` a token.
  virtual void on_reply(const pb::SessionResponse& reply) = 0;
  virtual void on_token(const pb::TokenReply& reply) = 0;
  // No reply will come any more. `connected` says whether the node was ever there.
  virtual void on_lost(const std::string& why, bool connected) = 0;
};

class Channel : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static std::shared_ptr<Channel> open(const std::string& address, EventLoop* loop);

  // A new handle, whose replies go to the listener for as long as that lives.
  uint32_t attach(std::weak_ptr<ReplyListener> listener);
  void detach(uint32_t handle);
  void send(const pb::SessionRequest& request);
  const std::string& address() const { return address_; }
  bool broken() const { return stopped_; }

  // Ends the stream. On the loop's thread, as all above.
  void close();
  // Waits until gRPC is done with a stream that was closed; on any other thread than the loop's.
  void wait_until_done();
  bool done();

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Channel(const std::string& address, EventLoop* loop);

  void take();
  void deliver(const pb::SessionResponse& reply);
  // Starts nothing more; gRPC then ends the stream and says why.
  void stop();
  void tell_lost(const std::string& why);
  void write_next();

  const std::string address_;
  EventLoop* const loop_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Channel> self_;

  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::deque<grpc::ByteBuffer> requests_;
  bool writing_ = false;
  bool connected_ = false;
  bool stopped_ = false;
  uint32_t last_handle_ = 0;
  std::map<uint32_t, std::weak_ptr<ReplyListener>> listeners_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// The channels of one node, one an address. For the loop's thread alone.
class ChannelPool {
 public:
  explicit ChannelPool(EventLoop* loop) : loop_(loop) {}

  // The channel to an address; one that broke is replaced.
  std::shared_ptr<Channel> channel(const std::string& address);

  // Ends all channels and gives them to whoever waits until they are done.
  std::vector<std::shared_ptr<Channel>> close();

 private:
  EventLoop* const loop_;
  // Those that broke stay until gRPC is done with them.
  std::vector<std::shared_ptr<Channel>> channels_;
};

}  // namespace meshnet
