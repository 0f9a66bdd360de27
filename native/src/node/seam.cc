#include "node/seam.h"

#include <chrono>
#include <utility>

#include "node/buffers.h"
#include "wire/failure.h"

namespace meshnet {
namespace {

// How long replies that are still queued may take to leave when a stream has been served.
constexpr std::chrono::seconds kFlush{2};

}  // namespace

Seam* Seam::serve(grpc::CallbackServerContext* context, EventLoop* loop, SeamHandler* handler,
                  uint64_t max_bytes) {
  const std::shared_ptr<Seam> seam(new Seam(context, loop, handler, max_bytes));
  seam->self_ = seam;
  // The opener waits for this to know that a node is there.
  seam->StartSendInitialMetadata();
  seam->StartRead(&seam->incoming_);
  return seam.get();
}

Seam::Seam(grpc::CallbackServerContext* context, EventLoop* loop, SeamHandler* handler,
           uint64_t max_bytes)
    : context_(context), loop_(loop), handler_(handler), max_bytes_(max_bytes) {}

void Seam::send(const pb::SessionResponse& reply) {
  if (ending_ || gone_) return;
  replies_.push_back(to_buffer(reply));
  write_next();
}

void Seam::OnReadDone(bool ok) {
  loop_->post([self = self_, ok] { ok ? self->take() : self->end({}); });
}

void Seam::OnWriteDone(bool ok) {
  loop_->post([self = self_, ok] {
    self->writing_ = false;
    if (!ok) self->replies_.clear();
    self->write_next();
  });
}

void Seam::OnCancel() {
  loop_->post([self = self_] {
    self->gone_ = true;
    self->replies_.clear();
    self->end({});
  });
}

void Seam::OnDone() {
  // The last reference may be this one: it goes on the loop, behind all that was posted before.
  loop_->post([self = std::move(self_)] {});
}

void Seam::take() {
  if (ending_) return;
  try {
    handler_->on_request(self_, read_request(to_bytes(incoming_), max_bytes_));
  } catch (const ShardFailure& failure) {
    end(failure.error());
    return;
  }
  StartRead(&incoming_);
}

void Seam::end(const pb::ShardError& error) {
  if (!ending_) {
    // What the sessions say as they end still leaves.
    handler_->on_end(*this);
    ending_ = error;
    loop_->call_later(kFlush, [weak = std::weak_ptr<Seam>(self_)] {
      const std::shared_ptr<Seam> seam = weak.lock();
      if (seam && !seam->finished_) seam->context_->TryCancel();
    });
  }
  write_next();
}

void Seam::write_next() {
  if (writing_ || finished_) return;
  if (!replies_.empty()) {
    outgoing_ = std::move(replies_.front());
    replies_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  } else if (ending_) {
    finished_ = true;
    if (ending_->code() == pb::ERROR_CODE_UNSPECIFIED) {
      Finish(grpc::Status::OK);
    } else {
      context_->AddTrailingMetadata(kErrorTrailer, ending_->SerializeAsString());
      Finish(to_status(*ending_));
    }
  }
}

}  // namespace meshnet
