// CUDA's words for a host C++ compiler, enough for kernels whose threads do not talk to each other.
//
// Every thread of a launch runs alone, one after the other, in the order asked for. Barriers, shared memory and warp
// operations have no meaning then; kernels that use them do not compile.
#pragma once
#include <cmath>

struct Index3 {
    unsigned x, y, z;
};

static Index3 gridDim, blockDim, blockIdx, threadIdx;

#define __global__
#define __device__ static inline
#define __restrict__ __restrict

// Position `number` of a box, x fastest.
static inline Index3 index_at(unsigned long long number, Index3 box)
{
    const unsigned long long rest = number / box.x;
    return {unsigned(number % box.x), unsigned(rest % box.y), unsigned(rest / box.y)};
}

template <class Body> void run_threads(Index3 grid, Index3 block, bool backwards, Body body)
{
    gridDim = grid;
    blockDim = block;
    const unsigned long long per_block = 1ull * block.x * block.y * block.z;
    const unsigned long long all = per_block * grid.x * grid.y * grid.z;
    for (unsigned long long i = 0; i < all; ++i) {
        const unsigned long long number = backwards ? all - 1 - i : i;
        blockIdx = index_at(number / per_block, grid);
        threadIdx = index_at(number % per_block, block);
        body();
    }
}
