// One thread that does all of a node's work, so that its state needs no locks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace meshnet {

class EventLoop {
 public:
  using Task = std::function<void()>;

  EventLoop();
  // Runs what was posted before, and ends; timers that aren't due are dropped.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs a task on the loop's thread, behind those posted before. Tasks must not throw.
  void post(Task task);

  // Runs a task after a time. It can't be taken back: let it hold weak references alone.
  void call_later(std::chrono::nanoseconds delay, Task task);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  // The next task that may run; nothing once the loop is to end. Waits for one.
  Task next();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::multimap<Clock::time_point, Task> timers_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace meshnet
