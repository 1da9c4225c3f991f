// Queues: a packet processor each, as strict as the specification allows. Packets between two barrier bits run in the
// order that is worst for who forgot one; headers are read as early as they may be.

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#define MOST_PENDING 4096

typedef hsa_kernel_dispatch_packet_t packet;

// What stands between two barriers, and what the processor knows of the packet before.
typedef struct {
  packet pending[MOST_PENDING];
  int count;
  uint64_t next;          // number of the packet that is read next
  int64_t handed_over;    // the last one of the last doorbell but one
  bool completed;         // the packet before had a completion signal, or there was none: a step begins
} processor;

static packet *ring_of(queue *q) { return q->shared.hsa_queue.base_address; }

static packet *slot_of(queue *q, uint64_t number) { return &ring_of(q)[number & (q->shared.hsa_queue.size - 1)]; }

static int header_field(uint16_t header, int place, int width) { return header >> place & ((1 << width) - 1); }

// The queue is dead: what is left in it never completes. The real one suspends it and calls back on its own thread.
static void fail(queue *q, hsa_status_t status, const char *why) {
  refuse(status, "%s", why);
  q->dead = true;
  if (q->callback) q->callback(status, &q->shared.hsa_queue, q->data);
}

// Returns whether the dispatch still runs.
static bool meet(queue *q, bool *lose_signal) {
  int argument = 0;
  switch (injected(false, &argument)) {
    case INJECT_QUEUE_ERROR: fail(q, (hsa_status_t)argument, "injected"); return false;
    case INJECT_MEMORY_FAULT:
      q->dead = true;
      report_event(HSA_AMD_GPU_MEMORY_FAULT_EVENT, 0xDEAD000, HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT);
      return false;
    case INJECT_RESET:
      q->dead = true;
      report_event(1 /* a hardware exception; later headers name it */, 0, 0);
      return false;
    case INJECT_HANG: q->dead = true; return false;
    case INJECT_DELAY: {
      struct timespec time = {argument / 1000, argument % 1000 * 1000000L};
      nanosleep(&time, NULL);
      return true;
    }
    case INJECT_LOST_SIGNAL: *lose_signal = true; return true;
    default: return true;
  }
}

static void run(queue *q, const packet *p) {
  __atomic_add_fetch(&G.dispatches, 1, __ATOMIC_RELAXED);
  hsa_status_t status;
  const kernel *k = find_kernel(p->kernel_object);
  const char *wrong = invalid_dispatch(p, k, &status);
  if (wrong) {
    fail(q, status, wrong);
    return;
  }
  uint64_t start = now();
  bool lose_signal = false;
  if (!meet(q, &lose_signal)) return;
  int result = G.executor ? G.executor(k->entry, p, k->code_object, k->code_object_bytes) : HSA_STATUS_ERROR;
  if (result)
    fail(q, (hsa_status_t)result, "the kernel raised");
  else if (!lose_signal)
    count_down(p->completion_signal, start, now());
}

static void run_pending(queue *q, processor *self) {
  if (!self->count) return;
  if (G.reverse && self->count > 1) G.reordered += self->count;
  __atomic_add_fetch(&G.running, 1, __ATOMIC_SEQ_CST);
  open_device_memory();
  for (int k = 0; k < self->count && !q->dead; k++) run(q, &self->pending[G.reverse ? self->count - 1 - k : k]);
  close_device_memory();
  __atomic_sub_fetch(&G.running, 1, __ATOMIC_SEQ_CST);
  self->count = 0;
}

// NULL where the header says what it has to at this place of a step.
static const char *invalid_header(const processor *self, const packet *p) {
  int acquire = header_field(p->header, HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE, 2);
  int release = header_field(p->header, HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE, 2);
  if (header_field(p->header, 0, 8) != HSA_PACKET_TYPE_KERNEL_DISPATCH) return "a packet of an unknown type";
  if (acquire > HSA_FENCE_SCOPE_SYSTEM || release > HSA_FENCE_SCOPE_SYSTEM) return "a fence of no scope";
  if (!release) return "a packet releases nothing: what it wrote may never be seen";
  if (p->completion_signal.handle && release != HSA_FENCE_SCOPE_SYSTEM)
    return "a completion is signalled without a release to the system: the host may read what was there before";
  bool first = self->completed && (int64_t)self->next == self->handed_over + 1;
  if (first && acquire != HSA_FENCE_SCOPE_SYSTEM)
    return "a step begins without an acquire from the system: it may read what the host wrote before";
  return NULL;
}

// Takes the next packet if it is there. `early`: its doorbell has not been rung.
static bool take(queue *q, processor *self, bool early) {
  packet *slot = slot_of(q, self->next);
  uint16_t header = __atomic_load_n(&slot->header, __ATOMIC_ACQUIRE);
  if (header_field(header, 0, 8) == HSA_PACKET_TYPE_INVALID) return false;
  packet p = *slot;
  const char *wrong = invalid_header(self, &p);
  if (early) {
    // The header was valid, so all of it was: whatever changes until the doorbell was written too late.
    while (!q->stopping && value_of(q->shared.hsa_queue.doorbell_signal) < (int64_t)self->next) sched_yield();
    if (q->stopping) return false;
    if (memcmp(&p, slot, sizeof p)) wrong = "a packet changed after its header was valid";
  }
  if (wrong) {
    fail(q, HSA_STATUS_ERROR_INVALID_PACKET_FORMAT, wrong);
    return false;
  }
  if (header_field(p.header, HSA_PACKET_HEADER_BARRIER, 1) || self->count == MOST_PENDING) {
    run_pending(q, self);
    G.barriers++;
  }
  if (q->dead) return false;
  self->pending[self->count++] = p;
  self->completed = p.completion_signal.handle != 0;
  // Nothing of it is left for a packet whose header comes before its body.
  memset((char *)slot + sizeof slot->header, 0xA5, sizeof *slot - sizeof slot->header);
  __atomic_store_n(&slot->header, HSA_PACKET_TYPE_INVALID, __ATOMIC_RELEASE);
  __atomic_store_n(&q->shared.read_dispatch_id, ++self->next, __ATOMIC_RELEASE);
  return true;
}

static bool valid(const packet *slot) {
  return header_field(__atomic_load_n(&slot->header, __ATOMIC_ACQUIRE), 0, 8) != HSA_PACKET_TYPE_INVALID;
}

// Until there is something to read: the number of the last packet that was handed over.
static int64_t wait_for_packets(queue *q, const processor *self) {
  hsa_signal_t doorbell = q->shared.hsa_queue.doorbell_signal;
  for (long turn = 1; G.eager && !q->stopping && !q->dead && value_of(doorbell) < (int64_t)self->next; turn++) {
    if (valid(slot_of(q, self->next))) return value_of(doorbell);
    if (turn % 256 == 0) sched_yield();
  }
  pthread_mutex_lock(&LOCK);
  while (!q->stopping && (q->dead || (!G.eager && value_of(doorbell) < (int64_t)self->next)))
    pthread_cond_wait(&CHANGED, &LOCK);
  pthread_mutex_unlock(&LOCK);
  return value_of(doorbell);
}

static void *process(void *argument) {
  queue *q = argument;
  processor *self = calloc(1, sizeof *self);
  *self = (processor){.handed_over = -1, .completed = true};
  while (!q->stopping) {
    if (!q->dead && value_of(q->shared.hsa_queue.doorbell_signal) < (int64_t)self->next) {
      // All that was handed over has been read.
      self->handed_over = (int64_t)self->next - 1;
      run_pending(q, self);
    }
    int64_t last = wait_for_packets(q, self);
    if (q->stopping) break;
    if (last < (int64_t)self->next) {
      take(q, self, true);
      continue;
    }
    int64_t written = (int64_t)__atomic_load_n(&q->shared.write_dispatch_id, __ATOMIC_ACQUIRE);
    if (last >= written) {
      fail(q, HSA_STATUS_ERROR_INVALID_PACKET_FORMAT, "the doorbell names a packet that was not reserved");
    } else if (last - (int64_t)self->next >= q->shared.hsa_queue.size) {
      fail(q, HSA_STATUS_ERROR_INVALID_PACKET_FORMAT, "packets were written over others that had not been read");
    }
    while (!q->dead && !q->stopping && (int64_t)self->next <= last)
      if (!take(q, self, false) && !q->dead)
        fail(q, HSA_STATUS_ERROR_INVALID_PACKET_FORMAT, "the doorbell was rung before a packet was valid");
  }
  free(self);
  return NULL;
}

API hsa_status_t hsa_queue_create(
    hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type, void (*callback)(hsa_status_t, hsa_queue_t *, void *),
    void *data, uint32_t private_segment, uint32_t group_segment, hsa_queue_t **made) {
  NEED_INIT();
  (void)private_segment, (void)group_segment;
  if (agent.handle != GPU_AGENT) return HSA_STATUS_ERROR_INVALID_QUEUE_CREATION;
  if (size < 64 || size & (size - 1)) return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "a queue of %u packets", size);
  queue *q = aligned_alloc(64, (sizeof *q + 63) / 64 * 64);
  memset(q, 0, sizeof *q);
  q->callback = callback;
  q->data = data;
  q->doorbell.kind = AMD_SIGNAL_KIND_DOORBELL;
  q->doorbell.value = -1;
  hsa_queue_t *shared = &q->shared.hsa_queue;
  shared->type = type;
  shared->features = HSA_QUEUE_FEATURE_KERNEL_DISPATCH;
  shared->size = size;
  shared->base_address = aligned_alloc(64, size * sizeof(packet));
  shared->doorbell_signal.handle = (uint64_t)&q->doorbell;
  memset(shared->base_address, 0xA5, size * sizeof(packet));
  for (uint32_t k = 0; k < size; k++) ring_of(q)[k].header = HSA_PACKET_TYPE_INVALID;
  G.queues++;
  if (pthread_create(&q->thread, NULL, process, q)) abort();
  *made = shared;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_queue_destroy(hsa_queue_t *made) {
  NEED_INIT();
  queue *q = (queue *)made;
  pthread_mutex_lock(&LOCK);
  q->stopping = true;
  pthread_cond_broadcast(&CHANGED);
  pthread_mutex_unlock(&LOCK);
  pthread_join(q->thread, NULL);
  free(q->shared.hsa_queue.base_address);
  free(q);
  G.queues--;
  return HSA_STATUS_SUCCESS;
}

API uint64_t hsa_queue_add_write_index_screlease(const hsa_queue_t *made, uint64_t count) {
  return __atomic_fetch_add(&((queue *)made)->shared.write_dispatch_id, count, __ATOMIC_ACQ_REL);
}

API uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *made) {
  return __atomic_load_n(&((queue *)made)->shared.read_dispatch_id, __ATOMIC_ACQUIRE);
}

API hsa_status_t hsa_amd_profiling_set_profiler_enabled(hsa_queue_t *made, int enable) {
  NEED_INIT();
  (void)made, (void)enable;
  return HSA_STATUS_SUCCESS;
}
