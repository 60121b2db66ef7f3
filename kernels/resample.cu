// Crop and antialiased resize of pictures of any size into one batch, bit for bit as Pillow does it.
//
// Pillow (libImaging/Resample.c) filters one axis at a time with weights in fixed point (22 bits), and rounds to
// 8 bits after the first axis. So do these kernels, three launches per batch:
//
//   resample_taps         weights of every output column and row, from doubles, as Pillow rounds them
//   resample_first_pass   one axis, into an 8-bit picture in scratch, only the part that the crop window needs
//   resample_second_pass  the other axis, into the batch; the fill colour where the window leaves the picture
//
// Why two passes and not one fused kernel. A fused thread recomputes the first axis for each row that it weighs:
// taps_x * taps_y products per output where two passes need about taps_x * scale + taps_y (2x more for bilinear,
// 6x for Lanczos, at any large scale). A fused tile in shared memory avoids that, but its height in source rows grows
// with the scale and has no bound. The price of two passes is small: for 500x375 -> 256 -> 224, bilinear, the
// intermediate is 329 x 224 x 3 = 221 kB per picture beside 326 kB read and 151 kB written, and a batch of 64 of them
// (14 MB) stays in the L2 cache of an A100 or H100 (40 or 50 MB).
//
// Why weights are computed here: vectorised on the host, bicubic ones to 224 cost 0.15 ms of CPU per picture of 500x375
// and 0.35 ms of 4000x3000, and 13 to 88 kB of upload; a plan without them costs 0.01 ms and 104 bytes.
// They need --fmad=false: a contracted multiply-add rounds differently from Pillow's C. Only Lanczos can still differ,
// where CUDA's sin and the C library's differ in the last bit and 22 bits of weight show it.
//
// A thread makes one RGB pixel (per tap: one weight and three bytes to load; with a thread per byte it would be two
// loads per byte). No shared memory, no barrier, no spill; ptxas gives the passes 40 registers on sm_90 and at most
// 48 elsewhere, so five or six blocks of 256 threads share an SM. Lanes of a warp lie along the stored rows, also for
// pictures that EXIF turns by 90 degrees: a warp's load of one tap then spans 96 bytes times the scale, where lanes
// along upright rows would touch 32 stored rows.

struct Picture {
    long long origin;     // address of upright pixel (0, 0)
    long long step_x;     // bytes from one upright pixel to the next on its right
    long long step_y;     // bytes from one upright pixel to the next below
    long long taps_x;     // offset in scratch of the taps of columns, in ints
    long long taps_y;     // the same of rows
    long long middle;     // offset in scratch of the picture between the passes, in bytes
    int width, height;    // upright source
    int resized_width, resized_height;
    int left, top;        // crop window in the resized picture; may lie partly outside
    int shown_x, shown_y; // part of the resized picture that the window shows
    int shown_width, shown_height;
    int middle_start;     // first source row (column if vertical_first) that the second pass needs
    int middle_width, middle_height;
    int vertical_first;
};

static_assert(sizeof(Picture) == 104, "must match PICTURE_DTYPE in resample.py");

enum Filter { BILINEAR = 0, BICUBIC = 1, LANCZOS = 2 };

static const int PRECISION_BITS = 32 - 8 - 2; // as in Pillow: 8 bits of result, 2 bits for overshoot

__device__ double sinc(double x)
{
    if (x == 0.0) {
        return 1.0;
    }
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

__device__ double filter_at(int filter, double x)
{
    if (filter == LANCZOS) {
        return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    }
    if (x < 0.0) {
        x = -x;
    }
    if (filter == BILINEAR) {
        return x < 1.0 ? 1.0 - x : 0.0;
    }
    const double a = -0.5;
    if (x < 1.0) {
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    }
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

// Taps of output `index`: first source position, count, then the weights, each `stride` ints after the one before.
__device__ void write_taps(int filter, int source, int resized, int index, int stride, int* __restrict__ taps)
{
    const double scale = (double)source / resized;
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = (filter == BILINEAR ? 1.0 : filter == BICUBIC ? 2.0 : 3.0) * stretch;
    const double shrink = 1.0 / stretch;
    const double center = (index + 0.5) * scale;
    int first = (int)(center - support + 0.5);
    int last = (int)(center + support + 0.5);
    first = first < 0 ? 0 : first;
    last = last > source ? source : last;
    double sum = 0.0;
    for (int i = first; i < last; ++i) {
        sum += filter_at(filter, (i - center + 0.5) * shrink);
    }
    taps[0] = first;
    taps[stride] = last - first;
    for (int i = first; i < last; ++i) {
        double weight = filter_at(filter, (i - center + 0.5) * shrink);
        weight = (sum != 0.0 ? weight / sum : weight) * (1 << PRECISION_BITS);
        taps[(long long)(2 + i - first) * stride] = (int)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
}

__device__ unsigned char level_of(int sum)
{
    const int level = sum >> PRECISION_BITS;
    return (unsigned char)(level < 0 ? 0 : level > 255 ? 255 : level);
}

// One output pixel: `count` source pixels, `step` bytes apart, times weights that are `stride` ints apart.
__device__ void weigh(const unsigned char* __restrict__ source, long long step, const int* __restrict__ weights,
                      int stride, int count, unsigned char* __restrict__ out)
{
    int red = 1 << (PRECISION_BITS - 1);
    int green = red;
    int blue = red;
    for (int i = 0; i < count; ++i) {
        const int weight = weights[(long long)i * stride];
        const unsigned char* pixel = source + i * step;
        red += pixel[0] * weight;
        green += pixel[1] * weight;
        blue += pixel[2] * weight;
    }
    out[0] = level_of(red);
    out[1] = level_of(green);
    out[2] = level_of(blue);
}

// Grid: x over shown_width + shown_height, y over pictures.
extern "C" __global__ void resample_taps(const Picture* __restrict__ pictures, unsigned char* __restrict__ scratch,
                                         int filter)
{
    const Picture& picture = pictures[blockIdx.y];
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = column - picture.shown_width;
    int* taps = (int*)scratch;
    if (column < picture.shown_width) {
        write_taps(filter, picture.width, picture.resized_width, picture.shown_x + column, picture.shown_width,
                   taps + picture.taps_x + column);
    } else if (row < picture.shown_height) {
        write_taps(filter, picture.height, picture.resized_height, picture.shown_y + row, picture.shown_height,
                   taps + picture.taps_y + row);
    }
}

// Grid: x over the middle picture's axis along stored rows, y strides over its other axis, z over pictures.
extern "C" __global__ void resample_first_pass(const Picture* __restrict__ pictures,
                                               unsigned char* __restrict__ scratch)
{
    const Picture& picture = pictures[blockIdx.z];
    const bool turned = picture.step_x != 3 && picture.step_x != -3;
    const int lane = blockIdx.x * blockDim.x + threadIdx.x;
    const int lanes = turned ? picture.middle_height : picture.middle_width;
    const int lines = turned ? picture.middle_width : picture.middle_height;
    if (lane >= lanes) {
        return;
    }
    const unsigned char* origin = (const unsigned char*)picture.origin;
    const int* taps = (const int*)scratch;
    for (int line = blockIdx.y * blockDim.y + threadIdx.y; line < lines; line += gridDim.y * blockDim.y) {
        const int x = turned ? line : lane;
        const int y = turned ? lane : line;
        unsigned char* out = scratch + picture.middle + ((long long)y * picture.middle_width + x) * 3;
        if (picture.vertical_first) {
            const int* tap = taps + picture.taps_y + y;
            const int stride = picture.shown_height;
            const long long start = tap[0] * picture.step_y + (picture.middle_start + x) * picture.step_x;
            weigh(origin + start, picture.step_y, tap + 2 * stride, stride, tap[stride], out);
        } else {
            const int* tap = taps + picture.taps_x + x;
            const int stride = picture.shown_width;
            const long long start = tap[0] * picture.step_x + (picture.middle_start + y) * picture.step_y;
            weigh(origin + start, picture.step_x, tap + 2 * stride, stride, tap[stride], out);
        }
    }
}

// Grid: x over columns, y over rows of the batch's pictures, z over pictures. `fill` is red | green << 8 | blue << 16.
extern "C" __global__ void resample_second_pass(const Picture* __restrict__ pictures,
                                                const unsigned char* __restrict__ scratch,
                                                unsigned char* __restrict__ batch, int height, int width, int fill)
{
    const Picture& picture = pictures[blockIdx.z];
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) {
        return;
    }
    unsigned char* out = batch + (((long long)blockIdx.z * height + row) * width + column) * 3;
    const int x = column + picture.left - picture.shown_x;
    const int y = row + picture.top - picture.shown_y;
    if (x < 0 || y < 0 || x >= picture.shown_width || y >= picture.shown_height) {
        out[0] = (unsigned char)fill;
        out[1] = (unsigned char)(fill >> 8);
        out[2] = (unsigned char)(fill >> 16);
        return;
    }
    const unsigned char* middle = scratch + picture.middle;
    const long long pitch = (long long)picture.middle_width * 3;
    if (picture.vertical_first) {
        const int* tap = (const int*)scratch + picture.taps_x + x;
        const int stride = picture.shown_width;
        const long long start = y * pitch + (long long)(tap[0] - picture.middle_start) * 3;
        weigh(middle + start, 3, tap + 2 * stride, stride, tap[stride], out);
    } else {
        const int* tap = (const int*)scratch + picture.taps_y + y;
        const int stride = picture.shown_height;
        const long long start = (tap[0] - picture.middle_start) * pitch + (long long)x * 3;
        weigh(middle + start, pitch, tap + 2 * stride, stride, tap[stride], out);
    }
}
