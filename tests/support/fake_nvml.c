/* A driver's NVML with two GPUs, for a machine that has none. Built by tests/support/fake_driver.py; what it says is
 * asserted in tests/unit. GPU 1 knows no power draw, and has had an XID error. FAKE_NVML_CUDA is the CUDA of the driver
 * (13000 for 13.0), FAKE_NVML_CAPABILITY the compute capability (90 for 9.0). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10 };

typedef struct { int index; } *device_t;
static struct { int index; } gpus[2] = {{0}, {1}};

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
static int setting(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.65.06");
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *cuda) { *cuda = setting("FAKE_NVML_CUDA", 13000); return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    *major = setting("FAKE_NVML_CAPABILITY", 90) / 10;
    *minor = setting("FAKE_NVML_CAPABILITY", 90) % 10;
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &gpus[index]; return SUCCESS; }

static int index_of(void *device) { return ((device_t)device)->index; }

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%d%d%d%d", index_of(device), index_of(device), index_of(device), index_of(device));
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    snprintf(name, length, "NVIDIA Test 80GB");
    return SUCCESS;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = index_of(device); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:0%d:00.0", 7 + index_of(device));
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = 90 + index_of(device);
    rates->memory = 40;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    (void)device;
    memory->total = 81920ull << 20;
    memory->reserved = 920ull << 20;
    memory->used = 60000ull << 20;
    memory->free = 21000ull << 20;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    (void)device;
    memory->total = 81920ull << 20;
    memory->used = 60920ull << 20;
    memory->free = 21000ull << 20;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 312500;
    return index_of(device) == 0 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 60 + index_of(device);
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) {
    (void)device;
    *mhz = clock == 1 ? 1980 : 0; /* 1 is the SM clock */
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { *set = gpus; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)device;
    (void)set;
    return types == 8 ? SUCCESS : NOT_SUPPORTED; /* 8 is XID errors */
}
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    static int waiting = 1;
    (void)set;
    (void)timeout_ms;
    if (!waiting)
        return TIMEOUT;
    waiting = 0;
    event->device = &gpus[1];
    event->type = 8;
    event->data = 79; /* fallen off the bus */
    return SUCCESS;
}
