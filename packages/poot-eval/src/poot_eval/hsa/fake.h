// What the parts of the simulated HSA runtime share. It is built against AMD's own headers, so that every function has
// the real prototype, and its queues and signals the real layout.

#ifndef POOT_FAKE_H
#define POOT_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#define API __attribute__((visibility("default")))

enum { CPU_AGENT = 0x10, GPU_AGENT = 0x20 };
enum { POOL_DEVICE = 0x100, POOL_KERNARG = 0x200, POOL_HOST = 0x300 };

// Ticks a second, as amdgpu has them: whoever takes them for nanoseconds waits a tenth.
#define FREQUENCY 100000000ull

// The executor: runs one dispatch and returns an HSA status, which is the queue's error where it is not success.
typedef int (*fake_executor)(
    const char *entry, const hsa_kernel_dispatch_packet_t *packet, const void *code_object, size_t code_object_bytes);

// What the next dispatches meet; `argument` is a status, or milliseconds.
enum {
  INJECT_NOTHING,
  INJECT_QUEUE_ERROR,
  INJECT_MEMORY_FAULT,
  INJECT_RESET,
  INJECT_HANG,
  INJECT_DELAY,
  INJECT_LOST_SIGNAL,
  INJECT_COPY_ERROR,
};

typedef struct {
  int references;
  bool absent;             // hsa_init finds no driver
  bool no_gpu;             // no GPU agent
  bool reverse;            // unordered packets run last to first
  bool guard;              // the host must not touch device memory
  bool eager;              // packets are read as soon as their header says so, before the doorbell
  long spurious_every;     // every so many waits return early
  uint64_t limit;          // bytes of device memory
  char name[64];           // of the GPU's instruction set
  uint32_t machine;        // EF_AMDGPU_MACH of it
  fake_executor executor;
  int inject;
  int argument;
  long after;              // dispatches (or copies) until it happens
  long dispatches, barriers, reordered, spurious, doorbells, copies, allocations, signals, live_signals, queues;
  long running;            // queues in the middle of packets
  char error[256];
} state;

extern state G;
extern pthread_mutex_t LOCK;     // over G, allocations, signals' waits and queues
extern pthread_cond_t CHANGED;   // a signal changed

// A status with words that a test can ask for.
hsa_status_t refuse(hsa_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define NEED_INIT() \
  do { \
    if (!G.references) return HSA_STATUS_ERROR_NOT_INITIALIZED; \
  } while (0)

// Whether this dispatch or copy is the one that was injected; kinds other than a delay happen once. Takes LOCK.
int injected(bool copy, int *argument);

// Memory: the allocation that holds [address, address + nbytes), or NULL; whether an address is of this runtime at all.
typedef struct {
  char *address;
  size_t nbytes;
  uint64_t pool;
  bool visible;   // to the GPU
} allocation;
const allocation *find_allocation(const void *address, size_t nbytes);
bool in_arena(uint64_t address);
void set_guard(bool guard);
void open_device_memory(void);
void close_device_memory(void);

// Signals.
uint64_t now(void);
int64_t value_of(hsa_signal_t signal);
void set_signal(hsa_signal_t signal, int64_t value);
void count_down(hsa_signal_t signal, uint64_t start, uint64_t end);
bool holds(hsa_signal_condition_t condition, int64_t value, int64_t compared);

// Executables.
typedef struct kernel {
  char entry[128];
  uint64_t object;
  uint32_t group_bytes, private_bytes, kernarg_bytes;
  const void *code_object;
  size_t code_object_bytes;
  struct kernel *next;
} kernel;
const kernel *find_kernel(uint64_t object);

// Faults: tell the handlers as ROCr does.
void report_event(uint32_t type, uint64_t address, uint32_t reason);

// Queues.
typedef struct {
  amd_queue_t shared;
  void (*callback)(hsa_status_t, hsa_queue_t *, void *);
  void *data;
  pthread_t thread;
  bool stopping, dead;
  int64_t doorbell_seen;   // the last packet that the host has handed over; -1 for none
  amd_signal_t doorbell;
} queue;

// NULL where the packet may run on this queue, else why not, and the status that a queue reports.
const char *invalid_dispatch(const hsa_kernel_dispatch_packet_t *packet, const kernel *kernel, hsa_status_t *status);

#endif
