// What comes next in memory, fetched a line at a time between products.

#pragma once

#include <cstdint>

namespace products {
namespace {

constexpr int64_t LINE = 64;    // Bytes that memory moves at once, on most processors.
constexpr int64_t PAGE = 4096;  // Bytes at whose end processors stop fetching by themselves.

// Lines to be fetched. Many at once would wait for each other, and the products for them. What is
// far away goes into the second cache, which waits for more lines at once than the first does; what
// is there already goes into the first.
struct Ahead {
  const char *line = nullptr, *end = nullptr;
  int64_t stride = 0, skip = 0, near = 0, lines = 0;

  // Of so many rows, of so many bytes each; what is near lies a distance before.
  Ahead(const char *first, int64_t row_stride, int64_t bytes, int64_t rows, int64_t distance)
      : line(first), near(distance) {
    const int64_t in_row = (bytes + LINE - 1) / LINE;
    if (row_stride == bytes) {
      stride = PAGE;
      end = first + PAGE - reinterpret_cast<uintptr_t>(first) % PAGE;
      lines = (bytes * rows + LINE - 1) / LINE;
    } else {
      stride = row_stride;
      end = first + bytes;
      skip = stride - in_row * LINE;
      lines = in_row * rows;
    }
  }

  // Lines for each of so many steps.
  int64_t share(int64_t steps) const { return (lines + steps - 1) / steps; }

  void fetch(int64_t count) {
    count = count < lines ? count : lines;
    lines -= count;
    for (; count > 0; --count) {
      __builtin_prefetch(line - near, 0, 3);
      __builtin_prefetch(line, 0, 2);
      line += LINE;
      if (line < end) continue;
      line += skip, end += stride;
      // The first lines of the next page let the processor begin with it before this one ends.
      if (skip == 0)
        for (int i = 0; i < 3; ++i) __builtin_prefetch(end + i * LINE, 0, 2);
    }
  }
};

}  // namespace
}  // namespace products
