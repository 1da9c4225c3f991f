// Signals, in the layout that the packet processor of a real GPU writes.

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

static amd_signal_t *shared_part(hsa_signal_t signal) { return (amd_signal_t *)signal.handle; }

uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * FREQUENCY + (uint64_t)time.tv_nsec / (1000000000ull / FREQUENCY);
}

int64_t value_of(hsa_signal_t signal) { return __atomic_load_n(&shared_part(signal)->value, __ATOMIC_ACQUIRE); }

void set_signal(hsa_signal_t signal, int64_t value) {
  pthread_mutex_lock(&LOCK);
  __atomic_store_n(&shared_part(signal)->value, value, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&CHANGED);
  pthread_mutex_unlock(&LOCK);
}

void count_down(hsa_signal_t signal, uint64_t start, uint64_t end) {
  if (!signal.handle) return;
  pthread_mutex_lock(&LOCK);
  shared_part(signal)->start_ts = start;
  shared_part(signal)->end_ts = end;
  __atomic_sub_fetch(&shared_part(signal)->value, 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&CHANGED);
  pthread_mutex_unlock(&LOCK);
}

bool holds(hsa_signal_condition_t condition, int64_t value, int64_t compared) {
  switch (condition) {
    case HSA_SIGNAL_CONDITION_EQ: return value == compared;
    case HSA_SIGNAL_CONDITION_NE: return value != compared;
    case HSA_SIGNAL_CONDITION_LT: return value < compared;
    default: return value >= compared;
  }
}

API hsa_status_t hsa_signal_create(
    hsa_signal_value_t value, uint32_t consumers, const hsa_agent_t *agents, hsa_signal_t *signal) {
  NEED_INIT();
  (void)consumers, (void)agents;
  amd_signal_t *made = aligned_alloc(64, sizeof *made);
  memset(made, 0, sizeof *made);
  made->kind = AMD_SIGNAL_KIND_USER;
  made->value = value;
  signal->handle = (uint64_t)made;
  pthread_mutex_lock(&LOCK);
  G.signals++;
  G.live_signals++;
  pthread_mutex_unlock(&LOCK);
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
  NEED_INIT();
  if (!signal.handle) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&LOCK);
  G.live_signals--;
  pthread_mutex_unlock(&LOCK);
  free(shared_part(signal));
  return HSA_STATUS_SUCCESS;
}

API void hsa_signal_store_screlease(hsa_signal_t signal, hsa_signal_value_t value) {
  if (shared_part(signal)->kind == AMD_SIGNAL_KIND_DOORBELL) __atomic_add_fetch(&G.doorbells, 1, __ATOMIC_RELAXED);
  set_signal(signal, value);
}

API void hsa_signal_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
  hsa_signal_store_screlease(signal, value);
}

API hsa_signal_value_t hsa_signal_load_scacquire(hsa_signal_t signal) { return value_of(signal); }

API hsa_signal_value_t hsa_signal_wait_scacquire(
    hsa_signal_t signal, hsa_signal_condition_t condition, hsa_signal_value_t compared, uint64_t timeout,
    hsa_wait_state_t state) {
  static long waits;
  (void)state;
  // A wait may return early, says the specification.
  if (G.spurious_every && __atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED) % G.spurious_every == 0) {
    __atomic_add_fetch(&G.spurious, 1, __ATOMIC_RELAXED);
    return value_of(signal);
  }
  uint64_t start = now();
  int64_t value;
  pthread_mutex_lock(&LOCK);
  while (!holds(condition, value = value_of(signal), compared)) {
    uint64_t waited = now() - start;
    if (waited >= timeout) break;
    uint64_t left = timeout - waited < FREQUENCY ? timeout - waited : FREQUENCY;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t nanoseconds = (uint64_t)until.tv_nsec + left * (1000000000ull / FREQUENCY);
    until.tv_sec += (time_t)(nanoseconds / 1000000000ull);
    until.tv_nsec = (long)(nanoseconds % 1000000000ull);
    pthread_cond_timedwait(&CHANGED, &LOCK, &until);
  }
  pthread_mutex_unlock(&LOCK);
  return value;
}

API hsa_status_t hsa_amd_profiling_get_dispatch_time(
    hsa_agent_t agent, hsa_signal_t signal, hsa_amd_profiling_dispatch_time_t *time) {
  NEED_INIT();
  if (agent.handle != GPU_AGENT) return HSA_STATUS_ERROR_INVALID_AGENT;
  time->start = shared_part(signal)->start_ts;
  time->end = shared_part(signal)->end_ts;
  return HSA_STATUS_SUCCESS;
}
