#include "node/loop.h"

#include <utility>

namespace meshnet {

EventLoop::EventLoop() : thread_([this] { run(); }) {}

EventLoop::~EventLoop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventLoop::post(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void EventLoop::call_later(std::chrono::nanoseconds delay, Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    timers_.emplace(Clock::now() + delay, std::move(task));
  }
  changed_.notify_one();
}

void EventLoop::run() {
  while (Task task = next()) task();
}

EventLoop::Task EventLoop::next() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      return task;
    }
    if (ending_) return nullptr;
    if (timers_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = timers_.begin();
    if (first->first <= Clock::now()) {
      tasks_.push_back(std::move(first->second));
      timers_.erase(first);
    } else {
      // A copy: the timer may be gone when the wait looks at its time again.
      const Clock::time_point due = first->first;
      changed_.wait_until(lock, due);
    }
  }
}

}  // namespace meshnet
