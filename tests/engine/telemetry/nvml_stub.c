/* Stand-in for libnvidia-ml.so.1 with the C interface of nvml.h: two GPUs, of which the second tells little (as under
   MIG). nvmlDeviceGetJpgUtilization is absent, as in drivers before branch 545. */
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef long *device;
static long indices[2] = {0, 1};

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return status == NOT_SUPPORTED ? "Not Supported" : "error"; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu) { *gpu = &indices[index]; return SUCCESS; }
int nvmlDeviceGetIndex(device gpu, unsigned *index) { *index = (unsigned)*gpu; return SUCCESS; }

int nvmlDeviceGetName(device gpu, char *name, unsigned length) {
    strncpy(name, *gpu ? "Stub \"B\"" : "Stub A", length);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device gpu, unsigned rates[2]) {
    rates[0] = 87;
    rates[1] = 41;
    return *gpu ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device gpu, unsigned long long memory[3]) {
    (void)gpu;
    memory[0] = 80ull << 30;
    memory[1] = 75ull << 30;
    memory[2] = 5ull << 30;
    return SUCCESS;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process *found) {
    if (*gpu) { *count = 0; return SUCCESS; }
    if (!found) { *count = 2; return INSUFFICIENT_SIZE; }
    *count = 2;
    found[0] = (struct process){1, 123, 0, 0};
    found[1] = (struct process){(unsigned)getpid(), 3ull << 30, 0, 0};
    return SUCCESS;
}

struct utilisation { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };

int nvmlDeviceGetProcessUtilization(device gpu, struct utilisation *found, unsigned *count, unsigned long long since) {
    if (*gpu) return NOT_SUPPORTED;
    if (!found) { *count = 3; return INSUFFICIENT_SIZE; }
    *count = 3;
    found[0] = (struct utilisation){(unsigned)getpid(), since + 1, 10, 0, 0, 0};
    found[1] = (struct utilisation){(unsigned)getpid(), since + 3, 60, 0, 0, 0};
    found[2] = (struct utilisation){1, since + 2, 20, 0, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device gpu, unsigned *milliwatts) { (void)gpu; *milliwatts = 312500; return SUCCESS; }

int nvmlDeviceGetPcieThroughput(device gpu, int direction, unsigned *kilobytes) {
    (void)gpu;
    *kilobytes = direction ? 900000 : 70000; /* 0: sent by the GPU, 1: received by it */
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(device gpu, int kind, unsigned *megahertz) {
    (void)gpu;
    *megahertz = kind == 1 ? 1980 : 2619; /* 1: multiprocessors, 2: memory */
    return SUCCESS;
}

int nvmlDeviceGetDecoderUtilization(device gpu, unsigned *share, unsigned *period) {
    (void)gpu;
    *share = 33;
    *period = 167000;
    return SUCCESS;
}
