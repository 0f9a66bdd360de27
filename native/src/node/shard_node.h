// One shard in service: accepts sessions, refuses those that can't share a route.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "node/head.h"
#include "node/seam.h"
#include "node/session.h"

namespace meshnet {

// For the loop's thread alone.
class ShardNode : public SeamHandler {
 public:
  ShardNode(EventLoop* loop, const pb::Capability& capability, uint32_t chunk_tokens);

  const pb::Capability& capability() const { return parts_.capability; }
  // Ready if a step succeeded lately, or a probe step does now.
  pb::HealthResponse health();
  // Both are idempotent. A cancel that comes before its session's opening holds as well.
  void release(const SessionKey& key);
  void cancel(const SessionKey& key, const std::string& reason);

  // Ends every session and every connection; the connections are given to whoever waits for them.
  std::vector<std::shared_ptr<Channel>> close();

  void on_request(const std::shared_ptr<Seam>& seam, Request request) override;
  void on_end(Seam& seam) override;

 private:
  // The sessions of one stream.
  struct Stream {
    std::map<uint32_t, std::shared_ptr<Session>> sessions;
    uint32_t highest = 0;
  };

  void accept(const std::shared_ptr<Seam>& seam, const Request& request);
  std::shared_ptr<Session> make_session(const std::shared_ptr<Seam>& seam,
                                        const Request& request);
  void check_terms(const pb::Envelope& envelope,
                   const google::protobuf::RepeatedPtrField<pb::Hop>& hops) const;
  void check_generation(const pb::Generate& request) const;
  void admit(const SessionKey& key);
  // Brings a frame to its session. One for a session that just ended is dropped.
  void route(Seam& seam, uint32_t handle, const std::function<void(Session&)>& deliver);
  void probe();
  bool is_head() const { return capability().layers().start() == 0; }
  bool is_tail() const { return capability().layers().end() == capability().total_layers(); }

  FixtureEngine engine_;
  ChannelPool channels_;
  NodeParts parts_;
  std::map<Seam*, Stream> streams_;
  std::map<SessionKey, std::shared_ptr<Session>> sessions_;
  std::map<std::string, uint64_t> epochs_;
  uint64_t steps_done_ = 0;
  std::optional<std::chrono::steady_clock::time_point> last_success_;
};

}  // namespace meshnet
