/* Stands in for the libraries of NVIDIA's driver, where there is no GPU: libnvidia-ml.so.1 and libcuda.so.1.

   The file $STAND_IN_GPUS says what they answer, by words with a number: "gpus 2" is the number of GPUs, "mig 2" that of the
   MIG devices of each, "fault 9" the answer to everything, "lost 1" makes GPU 1 refuse, "hang 1" makes it hang. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int number;
typedef unsigned long long wide;

static long told(const char *word, long usual) {
    char text[512] = "", *found, *path = getenv("STAND_IN_GPUS");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        text[length < 0 ? 0 : length] = 0;
        close(file);
    }
    found = strstr(text, word);
    return found ? atol(found + strlen(word)) : usual;
}

static int fault(void) { return (int)told("fault", 0); }

/* Handles: a GPU is its number and 1, a MIG device 100 more for each. */
static long gpu_of(void *handle) { return ((long)handle - 1) % 100; }
static long part_of(void *handle) { return ((long)handle - 1) / 100; }

static int about(void *handle) {
    while (told("hang", -1) == gpu_of(handle)) usleep(10000);
    return told("lost", -1) == gpu_of(handle) ? 15 : fault();
}

int nvmlInitWithFlags(number flags) { (void)flags; return fault(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, number length) { snprintf(text, length, "580.65.06"); return fault(); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return fault(); }
int nvmlDeviceGetCount_v2(number *count) { *count = (number)told("gpus", 1); return fault(); }
int nvmlDeviceGetHandleByIndex_v2(number index, void **handle) { *handle = (void *)(long)(index + 1); return fault(); }
int nvmlDeviceGetMinorNumber(void *handle, number *minor) { *minor = (number)gpu_of(handle); return fault(); }

int nvmlDeviceGetUUID(void *handle, char *text, number length) {
    if (part_of(handle)) snprintf(text, length, "MIG-stand-in-%ld-%ld", gpu_of(handle), part_of(handle));
    else snprintf(text, length, "GPU-stand-in-%ld", gpu_of(handle));
    return fault();
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    long gpu = 0, part = 0;
    sscanf(uuid, "%*3s-stand-in-%ld-%ld", &gpu, &part);
    *handle = (void *)(part * 100 + gpu + 1);
    return told("lost", -1) == gpu ? 15 : fault();
}

int nvmlDeviceGetName(void *handle, char *text, number length) {
    snprintf(text, length, part_of(handle) ? "NVIDIA Stand-in MIG 1g.10gb" : "NVIDIA Stand-in");
    return fault();
}

int nvmlDeviceGetMemoryInfo(void *handle, wide *memory) {
    memory[0] = 80ULL << 30;
    memory[2] = 3ULL << 30;
    memory[1] = memory[0] - memory[2];
    return about(handle);
}

int nvmlDeviceGetMigMode(void *handle, number *current, number *pending) {
    (void)handle;
    *current = *pending = told("mig", 0) > 0;
    return told("mig", -1) < 0 ? 3 : fault(); /* not supported */
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, number *count) { (void)handle; *count = 7; return fault(); }

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, number index, void **part) {
    *part = (void *)((index + 1) * 100 + (long)handle);
    return index < told("mig", 0) ? fault() : 6; /* not found */
}

int nvmlDeviceGetGpuInstanceId(void *handle, number *instance) { *instance = (number)part_of(handle); return fault(); }
int nvmlDeviceGetComputeInstanceId(void *handle, number *instance) { (void)handle; *instance = 0; return fault(); }

int nvmlDeviceGetUtilizationRates(void *handle, number *rates) { rates[0] = 25, rates[1] = 5; return about(handle); }
int nvmlDeviceGetPowerUsage(void *handle, number *milliwatts) { *milliwatts = 70500; return about(handle); }

int nvmlDeviceGetPowerManagementLimit(void *handle, number *milliwatts) {
    *milliwatts = 700000;
    return gpu_of(handle) ? 3 : about(handle); /* only the first GPU has one */
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, wide *millijoules) {
    *millijoules = (wide)told("energy", 5000);
    return about(handle);
}

/* CUDA: it needs the device files, and sees the GPUs whose files it may open and whose names it is shown. It is told nothing:
   a strict sandbox withholds the variable. */

static int opens(const char *path) {
    int file = open(path, O_RDWR);
    if (file >= 0) close(file);
    return file >= 0;
}

int cuInit(number flags) {
    (void)flags;
    return opens("/dev/nvidiactl") && opens("/dev/nvidia-uvm") ? 0 : 100;
}

int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = 0;
    for (long gpu = 0; gpu < 8; gpu++) {
        char path[64], uuid[64], index[24];
        snprintf(path, sizeof path, "/dev/nvidia%ld", gpu);
        snprintf(uuid, sizeof uuid, "GPU-stand-in-%ld", gpu);
        snprintf(index, sizeof index, "%ld", gpu);
        *count += opens(path) && (!visible || strstr(visible, uuid) || !strcmp(visible, index));
    }
    return *count ? 0 : 100;
}

int cuGetErrorName(int status, const char **name) {
    *name = status == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
