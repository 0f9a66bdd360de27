#include "node/channel.h"

#include <algorithm>
#include <utility>

#include "node/buffers.h"
#include "wire/failure.h"
#include "wire/frames.h"

namespace meshnet {
namespace {

constexpr const char* kSession = "/meshnet.wire.v1.ShardRuntime/Session";

std::shared_ptr<grpc::Channel> connection(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // A node whose machine died without a word is noticed after eight seconds.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A connection that others share would tell of an earlier failure instead of trying.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// The handle of a reply that isn't a frame of tokens.
uint32_t handle_of(const pb::SessionResponse& reply) {
  switch (reply.response_case()) {
    case pb::SessionResponse::kOpened:
      return reply.opened().handle();
    case pb::SessionResponse::kAck:
      return reply.ack().handle();
    case pb::SessionResponse::kFailed:
      return reply.failed().handle();
    case pb::SessionResponse::kReleased:
      return reply.released().handle();
    default:
      return reply.done().handle();
  }
}

}  // namespace

std::shared_ptr<Channel> Channel::open(const std::string& address, EventLoop* loop) {
  const std::shared_ptr<Channel> channel(new Channel(address, loop));
  channel->self_ = channel;
  channel->stub_.PrepareBidiStreamingCall(&channel->context_, kSession, {}, channel.get());
  channel->StartRead(&channel->incoming_);
  // Requests are written from the loop, not from a reaction; until `stop`, gRPC has to expect them.
  channel->AddHold();
  channel->StartCall();
  return channel;
}

Channel::Channel(const std::string& address, EventLoop* loop)
    : address_(address), loop_(loop), stub_(connection(address)) {}

uint32_t Channel::attach(std::weak_ptr<ReplyListener> listener) {
  listeners_[++last_handle_] = std::move(listener);
  return last_handle_;
}

void Channel::detach(uint32_t handle) { listeners_.erase(handle); }

void Channel::send(const pb::SessionRequest& request) {
  if (stopped_) return;
  requests_.push_back(to_buffer(request));
  write_next();
}

void Channel::close() {
  context_.TryCancel();
  stop();
}

void Channel::wait_until_done() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool Channel::done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void Channel::OnReadInitialMetadataDone(bool ok) {
  loop_->post([self = self_, ok] { self->connected_ |= ok; });
}

void Channel::OnReadDone(bool ok) {
  loop_->post([self = self_, ok] { ok ? self->take() : self->stop(); });
}

void Channel::OnWriteDone(bool ok) {
  loop_->post([self = self_, ok] {
    self->writing_ = false;
    if (!ok) self->requests_.clear();
    self->write_next();
  });
}

void Channel::OnDone(const grpc::Status& status) {
  const std::string why = status.ok() ? "the node closed it" : status.error_message();
  // The last reference may be this one: it goes on the loop, behind all that was posted before.
  loop_->post([self = std::move(self_), why] {
    self->tell_lost(why);
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->done_ = true;
    self->changed_.notify_all();
  });
}

void Channel::take() {
  if (stopped_) return;
  try {
    deliver(read_reply(to_bytes(incoming_)));
  } catch (const ShardFailure& failure) {
    tell_lost(failure.what());
    close();
    return;
  }
  StartRead(&incoming_);
}

void Channel::deliver(const pb::SessionResponse& reply) {
  const auto listener = [this](uint32_t handle) {
    const auto found = listeners_.find(handle);
    return found == listeners_.end() ? nullptr : found->second.lock();
  };
  if (!reply.has_tokens()) {
    if (const auto ear = listener(handle_of(reply))) ear->on_reply(reply);
    return;
  }
  for (const pb::TokenReply& token : reply.tokens().replies()) {
    if (const auto ear = listener(token.handle())) ear->on_token(token);
  }
}

void Channel::stop() {
  if (stopped_) return;
  stopped_ = true;
  requests_.clear();
  RemoveHold();
}

void Channel::tell_lost(const std::string& why) {
  const auto listeners = std::exchange(listeners_, {});
  for (const auto& [handle, weak] : listeners) {
    if (const auto listener = weak.lock()) listener->on_lost(why, connected_);
  }
}

void Channel::write_next() {
  if (writing_ || stopped_ || requests_.empty()) return;
  outgoing_ = std::move(requests_.front());
  requests_.pop_front();
  writing_ = true;
  StartWrite(&outgoing_);
}

std::shared_ptr<Channel> ChannelPool::channel(const std::string& address) {
  channels_.erase(std::remove_if(channels_.begin(), channels_.end(),
                                 [](const auto& channel) { return channel->done(); }),
                  channels_.end());
  for (const auto& channel : channels_) {
    if (channel->address() == address && !channel->broken()) return channel;
  }
  channels_.push_back(Channel::open(address, loop_));
  return channels_.back();
}

std::vector<std::shared_ptr<Channel>> ChannelPool::close() {
  for (const auto& channel : channels_) channel->close();
  return std::exchange(channels_, {});
}

}  // namespace meshnet
