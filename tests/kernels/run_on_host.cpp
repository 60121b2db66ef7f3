// Runs launches of one kernel source on the host: run_on_host IN OUT.
//
// Compile with -DKERNEL_FILE='"x.cu"' and -DKERNELS='KERNEL(a) KERNEL(b)'. IN is 64-bit numbers: order (1: backwards),
// count of buffers, their sizes; then the buffers, each padded to 8 bytes; count of pointers inside buffers, each as
// buffer and offset; count of launches, each as kernel number, grid, block, count of arguments, arguments. An address
// is (buffer + 1) << 40 | offset. Each buffer is an allocation of its own, so that a sanitizer sees its bounds. OUT is
// the buffers, one after the other.
#include "cuda_on_host.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include KERNEL_FILE

static std::vector<unsigned char*> buffers;

static unsigned char* resolve(uint64_t address)
{
    return buffers.at((address >> 40) - 1) + (address & ((1ull << 40) - 1));
}

template <class T> T argument(uint64_t value)
{
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(resolve(value));
    } else {
        return static_cast<T>(value);
    }
}

template <class... T, size_t... I>
void call(void (*kernel)(T...), const std::vector<uint64_t>& values, std::index_sequence<I...>)
{
    kernel(argument<T>(values.at(I))...);
}

template <class... T>
void launch(void (*kernel)(T...), Index3 grid, Index3 block, bool backwards, const std::vector<uint64_t>& values)
{
    if (values.size() != sizeof...(T)) {
        std::fprintf(stderr, "a kernel of %zu parameters got %zu\n", sizeof...(T), values.size());
        std::exit(3);
    }
    run_threads(grid, block, backwards, [&] { call(kernel, values, std::index_sequence_for<T...>{}); });
}

static void read_bytes(FILE* file, void* target, size_t size)
{
    if (size && std::fread(target, 1, size, file) != size) {
        std::fprintf(stderr, "the input is too short\n");
        std::exit(3);
    }
}

static uint64_t read_number(FILE* file)
{
    uint64_t value;
    read_bytes(file, &value, sizeof value);
    return value;
}

static std::vector<uint64_t> read_numbers(FILE* file)
{
    std::vector<uint64_t> values(read_number(file));
    for (uint64_t& value : values) {
        value = read_number(file);
    }
    return values;
}

static Index3 read_index(FILE* file)
{
    const unsigned x = unsigned(read_number(file));
    const unsigned y = unsigned(read_number(file));
    return {x, y, unsigned(read_number(file))};
}

static std::vector<uint64_t> read_buffers(FILE* file)
{
    std::vector<uint64_t> sizes = read_numbers(file);
    for (const uint64_t size : sizes) {
        buffers.push_back(static_cast<unsigned char*>(std::malloc(size)));
        read_bytes(file, buffers.back(), size);
        uint64_t padding;
        read_bytes(file, &padding, (8 - size % 8) % 8);
    }
    for (uint64_t left = read_number(file); left; --left) {
        unsigned char* holder = buffers.at(read_number(file));
        holder += read_number(file);
        uint64_t address;
        std::memcpy(&address, holder, sizeof address);
        const unsigned char* target = resolve(address);
        std::memcpy(holder, &target, sizeof target);
    }
    return sizes;
}

static void run_launch(FILE* file, bool backwards)
{
    const uint64_t wanted = read_number(file);
    const Index3 grid = read_index(file);
    const Index3 block = read_index(file);
    const std::vector<uint64_t> values = read_numbers(file);
    uint64_t number = 0;
#define KERNEL(name)                                       \
    if (number++ == wanted) {                              \
        return launch(name, grid, block, backwards, values); \
    }
    KERNELS
    std::fprintf(stderr, "no kernel %llu\n", static_cast<unsigned long long>(wanted));
    std::exit(3);
}

int main(int, char** words)
{
    FILE* in = std::fopen(words[1], "rb");
    const bool backwards = read_number(in);
    const std::vector<uint64_t> sizes = read_buffers(in);
    for (uint64_t left = read_number(in); left; --left) {
        run_launch(in, backwards);
    }
    std::fclose(in);
    FILE* out = std::fopen(words[2], "wb");
    for (size_t i = 0; i < sizes.size(); ++i) {
        std::fwrite(buffers[i], 1, sizes[i], out);
        std::free(buffers[i]);
    }
    return std::fclose(out);
}
