// The head's session: prefill, then the decode loop. The whole chain works to its beat.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "node/session.h"

namespace meshnet {

class HeadSession : public Session {
 public:
  HeadSession(NodeParts* parts, const pb::Generate& request, std::shared_ptr<Seam> upstream);

  void push(Request request) override;
  void push_decode(const pb::DecodeStep& step) override;
  void on_token(const pb::TokenReply& reply) override;

 protected:
  void opened() override;
  void work() override;
  void released(const pb::SessionReleased& behind) override;

 private:
  void prefill_chunk();
  // Reports the token that came back and goes on from it, or ends the generation.
  void decide();
  void decode(const pb::GeneratedToken& token);
  void take_token(pb::GeneratedToken token);
  // The token chosen here, on a node that holds all layers.
  void take_own(const StepResult& result);
  // Why the generation ends with this token; unspecified if it goes on.
  pb::FinishReason verdict(const pb::GeneratedToken& token) const;

  const pb::GenerationSpec spec_;
  uint64_t token_credits_;
  uint32_t position_ = 0;  // of the next prompt token to compute
  uint64_t next_step_ = 0;
  uint64_t reported_ = 0;
  std::optional<pb::GeneratedToken> token_;
  pb::FinishReason reason_ = pb::FINISH_REASON_UNSPECIFIED;
};

}  // namespace meshnet
