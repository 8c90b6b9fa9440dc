// The loop that calls are timed in, outside Python: a kernel written in Python finds no frame of it, and no list that the samples
// are kept in. What to do is read from a pipe that only the parent writes, and is gone from it before the first call.

#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
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
};

// An element, and what stands there in the one content and in the other.
struct Place {
  std::int64_t offset, width;
  char contents[2][8];
};

constexpr std::int64_t kMostSamples = 1 << 16;

std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

bool called(Object* callable, std::int64_t times) {
  for (std::int64_t at = 0; at < times; ++at) {
    Object* result = PyObject_CallNoArgs(callable);
    if (result == nullptr) return false;
    Py_DecRef(result);
  }
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

bool read_shape(int descriptor, Shape* shape) {
  return read_all(descriptor, shape, sizeof(Shape)) && shape->batch >= 1 && shape->count >= 0 && shape->count <= kMostSamples &&
         shape->lead >= 0 && shape->places >= 0 && shape->places <= kMostSamples;
}

void write(const std::vector<Place>& places, char* memory, char which) {
  for (const Place& place : places) std::memcpy(memory + place.offset, place.contents[which != 0], static_cast<std::size_t>(place.width));
}

}  // namespace

// The number of samples taken, their seconds per call in `seconds`, then the seconds of all calls of the lead, and in `told` the
// calls in each sample and whether the last result is asked for; -1 where a call raised, -2 where the shape cannot be read or has more samples than `room`.
extern "C" __attribute__((visibility("default"))) std::int64_t opforge_sample(Object* run, Object* ready, Object* same, int descriptor, double* seconds,
                                                                              std::int64_t room, std::int64_t* told, char* memory) {
  Shape shape{};
  if (!read_shape(descriptor, &shape) || shape.count >= room) return -2;
  if (shape.written != 0 && !called(shape.written == 1 ? ready : same, 1)) return -1;
  std::vector<Place> places(static_cast<std::size_t>(shape.places));
  std::vector<char> contents(shape.places != 0 ? static_cast<std::size_t>(shape.count) : 0);
  if (!read_all(descriptor, places.data(), places.size() * sizeof(Place)) || !read_all(descriptor, contents.data(), contents.size())) return -2;
  std::vector<double> samples;
  samples.reserve(static_cast<std::size_t>(shape.count));
  const std::int64_t began = now_ns();
  if (!called(run, shape.lead)) return -1;
  const double led = 1e-9 * static_cast<double>(now_ns() - began);
  for (std::int64_t at = 0; at < shape.count; ++at) {
    if (!contents.empty()) write(places, memory, contents[static_cast<std::size_t>(at)]);
    const std::int64_t start = now_ns();
    if (!called(run, shape.batch)) return -1;
    samples.push_back(1e-9 * static_cast<double>(now_ns() - start) / static_cast<double>(shape.batch));
  }
  for (std::size_t at = 0; at < samples.size(); ++at) seconds[at] = samples[at];
  seconds[samples.size()] = led;
  told[0] = shape.batch;
  told[1] = shape.collected;
  return shape.count;
}
