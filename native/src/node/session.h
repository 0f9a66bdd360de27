// One session on one node: computes its steps in order and hands the results on.
//
// `Session` is what all have in common. `SeamSession` here is driven by the node before it; the
// head's, which drives the whole chain, is in head.h. All of it runs on the loop's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "fixture/engine.h"
#include "node/channel.h"
#include "node/seam.h"
#include "wire/failure.h"
#include "wire/frames.h"

namespace meshnet {

// What every session of a node works with.
struct NodeParts {
  EventLoop* loop;
  FixtureEngine* engine;
  ChannelPool* channels;
  pb::Capability capability;
  uint32_t chunk_tokens;
  std::function<void()> step_done;
};

// Whether earlier tokens change the choice of the next.
bool has_penalties(const pb::SamplingParams& sampling);

// Throws `invalid_argument` for what the fixture's choice can't heed.
void require_greedy(const pb::SamplingParams& sampling);

SessionKey key_of(const pb::Envelope& envelope);

class Session : public ReplyListener, public std::enable_shared_from_this<Session> {
 public:
  // `terms` is what the opener said, in the form in which a node says it to the next.
  Session(NodeParts* parts, pb::OpenSession terms, std::shared_ptr<Seam> upstream);

  // Begins the work; `ended` is called once when the session is over on this node.
  void start(std::function<void(Session&)> ended);

  // Ends with an error: it is told to the node before, the nodes behind are cancelled. When the
  // error is somebody's wish (`cancelled`), further steps of the session are refused.
  void fail(const ShardFailure& failure, bool cancelled = false);
  // Ends without a word to the node before; the nodes behind are cancelled.
  void cancel(const std::string& reason);

  const SessionKey& key() const { return key_; }
  uint32_t handle() const { return terms_.handle(); }

  // Takes a frame that came for this session from above.
  virtual void push(Request request) = 0;
  virtual void push_decode(const pb::DecodeStep& step) = 0;

  void on_reply(const pb::SessionResponse& reply) override;
  void on_lost(const std::string& why, bool connected) override;

 protected:
  // All nodes behind are open.
  virtual void opened() = 0;
  // Does what can be done now.
  virtual void work() = 0;
  // All nodes behind are released.
  virtual void released(const pb::SessionReleased& behind) = 0;

  // Runs `work` soon, unless the session is over by then. What it throws ends the session.
  void work_soon();
  void guarded(const std::function<void()>& action);

  bool has_downstream() const { return terms_.hops_size() > 1; }
  bool may_send_chunk() const { return !has_downstream() || chunk_credits_ > 0; }

  // Computes a step and counts it.
  StepResult compute(const Step& step, bool prefill);
  // Hands a computed step on, to the next node.
  void hand_on(pb::PrefillChunk chunk, const Bundle& boundary);
  void hand_on(pb::DecodeStep step, const StepResult& result);
  void release_downstream();
  void time_return();

  void reply(const pb::SessionResponse& message) { upstream_->send(message); }
  void send_opened();
  const pb::HopTimings& timings() const { return timings_; }
  void end(bool cancelled, const std::string& reason);

  NodeParts* const parts_;
  const pb::OpenSession terms_;

 private:
  void open_downstream();
  void expect_within(const char* what, bool Session::*arrived);
  ShardFailure hop_failure(pb::ErrorCode code, const std::string& why) const;
  void send_downstream(const pb::SessionRequest& request);

  const SessionKey key_;
  const std::shared_ptr<Seam> upstream_;
  std::function<void(Session&)> ended_;
  std::shared_ptr<Channel> channel_;
  uint32_t downstream_handle_ = 0;
  uint64_t chunk_credits_ = 0;
  uint64_t last_chunk_step_ = 0;
  bool downstream_opened_ = false;
  bool downstream_released_ = false;
  pb::HopTimings timings_;
  std::chrono::steady_clock::time_point handed_on_;
};

// A session on a middle or tail: does what the node before it sends.
class SeamSession : public Session {
 public:
  SeamSession(NodeParts* parts, pb::OpenSession terms, std::shared_ptr<Seam> upstream);

  void push(Request request) override;
  void push_decode(const pb::DecodeStep& step) override;
  void on_token(const pb::TokenReply& reply) override;

 protected:
  void opened() override;
  void work() override;
  void released(const pb::SessionReleased& behind) override;

 private:
  // A prefill chunk or a release, or else a decode step.
  struct Frame {
    Request request;
    pb::DecodeStep decode;
  };

  void queue(Frame frame);
  void prefill(const Request& request);
  void decode(const pb::DecodeStep& step);
  void acknowledge(const Step& step, const StepResult& result);
  void send_token(uint64_t step, uint32_t position, uint32_t token);

  std::deque<Frame> inbox_;
  bool working_ = false;  // between opening and release
};

}  // namespace meshnet
