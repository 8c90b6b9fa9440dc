// The loop that calls are timed in, outside Python: a kernel written in Python finds no frame of it, and no list that the samples
// are kept in. What to do is read from a pipe that only the parent writes, and is gone from it before the first call. Its numbers
// are kept under a pad of random bits, so that a kernel which looks over the stack above its own frame finds none of them.

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

extern "C" {
struct Object;
Object* PyObject_CallNoArgs(Object* callable);
void Py_DecRef(Object* object);
}

namespace {

struct Shape {
  std::int64_t written;    // 1: call `ready` first, because the inputs have changed; 2: call `same`
  std::int64_t lead;       // first so many calls that are not timed
  std::int64_t batch;      // calls in a sample
  std::int64_t count;      // samples
  std::int64_t collected;  // whether the last result is asked for, which is said afterwards
  std::int64_t places;     // elements of inputs that are written before each sample
  std::int64_t spans;      // tensors that change as a whole before the calls that are not timed, and before each sample
};

// An element, and what stands there in the one content and in the other.
struct Place {
  std::int64_t offset, width;
  char contents[2][8];
};

// A tensor in the arena. `grain`: bytes that stay together where its content is turned; 0: an output, which is made what it was at first.
struct Span {
  std::int64_t offset, bytes, grain;
};

// What happens before a call: nothing, a pause as long as the last writing, what stands there is written once more, or the content of the
// request's beginning, turned by so many grains (modulo their number).
enum Kind : std::int64_t { kUntouched, kPause, kSame, kNew };
struct Step {
  std::int64_t kind, turn;
};

constexpr std::int64_t kMostSamples = 1 << 16;
constexpr std::int64_t kMostSpans = 1 << 8;
constexpr std::int64_t kLeastPauseNs = 2000;

std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

// A request whose numbers stand in memory under a pad alone: no number of it is in a register, or on the stack, while a kernel runs.
class Covered {
 public:
  explicit Covered(const Shape& shape) {
    std::random_device bits;
    pad_ = std::uint64_t{bits()} << 32 | bits();
    // one by one: an array of them would be left on the stack
    numbers_[0] = static_cast<std::uint64_t>(shape.lead) ^ pad_;
    numbers_[1] = static_cast<std::uint64_t>(shape.batch) ^ pad_;
    numbers_[2] = static_cast<std::uint64_t>(shape.count) ^ pad_;
    numbers_[3] = static_cast<std::uint64_t>(shape.collected) ^ pad_;
    numbers_[4] = static_cast<std::uint64_t>(shape.places) ^ pad_;
    numbers_[5] = static_cast<std::uint64_t>(shape.spans) ^ pad_;
  }
  std::int64_t lead() const { return number(0); }
  std::int64_t batch() const { return number(1); }
  std::int64_t count() const { return number(2); }
  std::int64_t collected() const { return number(3); }
  std::int64_t places() const { return number(4); }
  std::int64_t spans() const { return number(5); }

  std::vector<Span> tensors;
  std::vector<Step> steps;
  std::vector<Place> at;
  std::vector<char> contents;
  std::vector<double> samples;

 private:
  std::int64_t number(int which) const { return static_cast<std::int64_t>(numbers_[which] ^ pad_); }
  volatile std::uint64_t pad_ = 0, numbers_[6] = {};
};

bool called(Object* callable) {
  Object* result = PyObject_CallNoArgs(callable);
  if (result != nullptr) Py_DecRef(result);
  return result != nullptr;
}

// Fill this thread's caches of small blocks, each size that is cut off an aligned request (glibc keeps seven): with spare ones, and what was in
// them goes back to its place. The first seven come out of the cache, and may be ends of results. runner/result_memory.py says what for.
void fill_caches() {
  constexpr int kCached = 7, kBlocks = 2 * kCached;
  for (std::size_t size = 24; size <= 120; size += 16) {
    void* volatile blocks[kBlocks];
    for (void* volatile& block : blocks) block = std::malloc(size);
    for (int at = 0; at < kBlocks; ++at) std::free(blocks[(at + kCached) % kBlocks]);
  }
}

// The calls before the samples, the caches filled before so many of them: what belongs to results that are alive is freed by the first.
bool led(Object* run, const Covered& request, std::int64_t filled) {
  for (std::int64_t at = 0; at < request.lead(); ++at) {
    if (at < filled) fill_caches();
    if (!called(run)) return false;
  }
  if (filled != 0) fill_caches();
  return true;
}

bool read_all(int descriptor, void* target, std::size_t size) {
  auto* bytes = static_cast<char*>(target);
  std::size_t had = 0;
  while (had < size) {
    const ssize_t got = read(descriptor, bytes + had, size - had);
    if (got <= 0) return false;
    had += static_cast<std::size_t>(got);
  }
  return true;
}

// The request, and nothing of it left on the stack; none where it cannot be read.
__attribute__((noinline)) std::unique_ptr<Covered> read_request(int descriptor, std::int64_t* written, std::int64_t room) {
  Shape shape{};
  const bool whole = read_all(descriptor, &shape, sizeof(Shape)) && shape.batch >= 1 && shape.count >= 0 && shape.count <= kMostSamples && shape.lead >= 0 &&
                     shape.places >= 0 && shape.places <= kMostSamples && shape.spans >= 0 && shape.spans <= kMostSpans && shape.count < room;
  std::unique_ptr<Covered> request;
  if (whole) {
    *written = shape.written;
    request = std::make_unique<Covered>(shape);
    request->at.resize(static_cast<std::size_t>(shape.places));
    request->contents.resize(static_cast<std::size_t>(shape.places != 0 ? shape.count : 0));
    request->tensors.resize(static_cast<std::size_t>(shape.spans));
    request->steps.resize(static_cast<std::size_t>(shape.spans != 0 ? 1 + shape.count : 0));
    request->samples.reserve(static_cast<std::size_t>(shape.count));
    if (!read_all(descriptor, request->at.data(), request->at.size() * sizeof(Place)) ||
        !read_all(descriptor, request->contents.data(), request->contents.size()) ||
        !read_all(descriptor, request->tensors.data(), request->tensors.size() * sizeof(Span)) ||
        !read_all(descriptor, request->steps.data(), request->steps.size() * sizeof(Step)))
      request.reset();
  }
  for (std::size_t byte = 0; byte < sizeof(Shape); ++byte) reinterpret_cast<volatile char*>(&shape)[byte] = 0;
  return request;
}

// The tensors of a request as they were when it began, outside the heap: what is allocated there decides where results are made
// (runner/result_memory.py). The memory is kept for the next request.
class Contents {
 public:
  Contents(const std::vector<Span>& spans, char* memory) : spans_(spans), memory_(memory) {
    std::int64_t needed = 0;
    for (const Span& span : spans_) needed += span.grain != 0 ? span.bytes : 2 * span.bytes;
    there_ = spans_.empty() || reserve(needed);
    char* to = room;
    if (there_)
      for (const Span& span : spans_) {
        std::memcpy(to, memory_ + span.offset, static_cast<std::size_t>(span.bytes));
        to += span.grain != 0 ? span.bytes : 2 * span.bytes;
      }
  }
  bool there() const { return there_; }

  void before(const Step& step) {
    const std::int64_t start = now_ns();
    if (step.kind == kPause) {
      while (now_ns() - start < took_) {
      }
    } else if (step.kind != kUntouched) {
      if (step.kind == kNew) turn_ = step.turn;
      put(step.kind == kNew);
      took_ = now_ns() - start;
    }
  }
  // The inputs as they were.
  void restore() {
    turn_ = 0;
    put(false);
  }

 private:
  static bool reserve(std::int64_t bytes) {
    if (bytes <= held) return true;
    if (held != 0) munmap(room, static_cast<std::size_t>(held));
    void* fresh = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    held = fresh != MAP_FAILED ? bytes : 0;
    room = fresh != MAP_FAILED ? static_cast<char*>(fresh) : nullptr;
    return held != 0;
  }

  void put(bool other) const {
    char* from = room;
    for (const Span& span : spans_) {
      char* to = memory_ + span.offset;
      const auto bytes = static_cast<std::size_t>(span.bytes);
      if (span.grain == 0) {
        // both ways read and write the whole of it
        std::memcpy(from + bytes, to, bytes);
        std::memcpy(to, other ? from : from + bytes, bytes);
        from += 2 * bytes;
        continue;
      }
      const auto ahead = static_cast<std::size_t>(turn_ % (span.bytes / span.grain) * span.grain);
      std::memcpy(to + ahead, from, bytes - ahead);
      std::memcpy(to, from + bytes - ahead, ahead);
      from += bytes;
    }
  }

  static char* room;
  static std::int64_t held;
  const std::vector<Span>& spans_;
  char* memory_;
  bool there_ = false;
  std::int64_t turn_ = 0, took_ = kLeastPauseNs;
};
char* Contents::room = nullptr;
std::int64_t Contents::held = 0;

void write(const std::vector<Place>& places, char* memory, char which) {
  for (const Place& place : places) std::memcpy(memory + place.offset, place.contents[which != 0], static_cast<std::size_t>(place.width));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void opforge_fill_caches() { fill_caches(); }

// The number of samples taken, their seconds per call in `seconds`, then the seconds of all calls of the lead and of copies, and in `told` the
// calls in each sample and whether the last result is asked for. Before the first `filled` calls caches are filled. -1 where a call raised,
// -2 where the shape cannot be read or has more samples than `room`, -3 where there is no memory for the contents.
extern "C" __attribute__((visibility("default"))) std::int64_t opforge_sample(Object* run, Object* ready, Object* same, int descriptor, double* seconds,
                                                                              std::int64_t room, std::int64_t* told, char* memory, std::int64_t filled) {
  std::int64_t written = 0;
  const std::unique_ptr<Covered> request = read_request(descriptor, &written, room);
  if (request == nullptr) return -2;
  Object* first = written == 1 ? ready : same;
  const bool asked = written != 0;
  written = 0;
  // what a forward pass keeps of the inputs is made again wherever they were written
  const bool keeps = ready == same;
  const std::int64_t copied = now_ns();
  Contents contents(request->tensors, memory);
  if (!contents.there()) return -3;
  if (request->spans() != 0) contents.before(request->steps[0]);
  const std::int64_t copies = now_ns() - copied;
  if (asked && !called(first)) return -1;
  const std::int64_t began = now_ns();
  if (!led(run, *request, filled)) return -1;
  double led = 1e-9 * static_cast<double>(now_ns() - began + copies);
  for (std::int64_t at = 0; at < request->count(); ++at) {
    if (request->places() != 0) {
      write(request->at, memory, request->contents[static_cast<std::size_t>(at)]);
      if (keeps && !called(ready)) return -1;
    }
    if (request->spans() != 0) {
      const Step& step = request->steps[static_cast<std::size_t>(1 + at)];
      contents.before(step);
      if (keeps && step.kind >= kSame && !called(ready)) return -1;
    }
    const std::int64_t start = now_ns();
    for (std::int64_t call = 0; call < request->batch(); ++call)
      if (!called(run)) return -1;
    request->samples.push_back(1e-9 * static_cast<double>(now_ns() - start) / static_cast<double>(request->batch()));
  }
  if (request->spans() != 0 && request->collected() == 0) {
    const std::int64_t done = now_ns();
    contents.restore();
    led += 1e-9 * static_cast<double>(now_ns() - done);
  }
  for (std::size_t at = 0; at < request->samples.size(); ++at) seconds[at] = request->samples[at];
  seconds[request->samples.size()] = led;
  told[0] = request->batch();
  told[1] = request->collected();
  return request->count();
}
