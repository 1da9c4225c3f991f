// The runtime's beginning and end, its agents, and what tests tell it (fake_*; no part of HSA).

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

state G = {.name = "gfx1100", .machine = 0x41, .reverse = true, .guard = true, .limit = 1ull << 32};
pthread_mutex_t LOCK = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t CHANGED = PTHREAD_COND_INITIALIZER;

hsa_status_t refuse(hsa_status_t status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(G.error, sizeof G.error, format, values);
  va_end(values);
  return status;
}

// What tests tell it

API void fake_execute(fake_executor executor) { G.executor = executor; }

static int nothing(const char *entry, const hsa_kernel_dispatch_packet_t *packet, const void *code, size_t nbytes) {
  (void)entry, (void)packet, (void)code, (void)nbytes;
  return HSA_STATUS_SUCCESS;
}

API void fake_execute_nothing(void) { G.executor = nothing; }

API void fake_gpu(const char *name, uint32_t machine) {
  snprintf(G.name, sizeof G.name, "%s", name);
  G.machine = machine;
}

API void fake_absent(bool absent, bool no_gpu) {
  G.absent = absent;
  G.no_gpu = no_gpu;
}

API void fake_behave(bool reverse, bool guard, bool eager, long spurious_every) {
  G.reverse = reverse;
  set_guard(guard);
  G.eager = eager;
  G.spurious_every = spurious_every;
}

API void fake_limit(uint64_t nbytes) { G.limit = nbytes; }

API void fake_inject(int kind, int argument, long after) {
  pthread_mutex_lock(&LOCK);
  G.inject = kind;
  G.argument = argument;
  G.after = after;
  pthread_mutex_unlock(&LOCK);
}

API const char *fake_error(void) { return G.error; }

API long fake_count(const char *what) {
  const struct {
    const char *name;
    long value;
  } counts[] = {
      {"dispatches", G.dispatches}, {"barriers", G.barriers},       {"reordered", G.reordered},
      {"spurious", G.spurious},     {"doorbells", G.doorbells},     {"copies", G.copies},
      {"signals", G.signals},       {"live signals", G.live_signals}, {"allocations", G.allocations},
      {"queues", G.queues},         {"references", G.references},   {"running", G.running},
  };
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
    if (!strcmp(counts[k].name, what)) return counts[k].value;
  return -1;
}

int injected(bool copy, int *argument) {
  pthread_mutex_lock(&LOCK);
  int kind = G.inject;
  if (kind == INJECT_NOTHING || (kind == INJECT_COPY_ERROR) != copy || G.after-- > 0) {
    kind = INJECT_NOTHING;
  } else {
    *argument = G.argument;
    if (kind == INJECT_DELAY)
      G.after = 0;
    else
      G.inject = INJECT_NOTHING;
  }
  pthread_mutex_unlock(&LOCK);
  return kind;
}

// The runtime

API hsa_status_t hsa_init(void) {
  if (G.absent) return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  G.references++;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_shut_down(void) {
  NEED_INIT();
  G.references--;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_status_string(hsa_status_t status, const char **words) {
  static __thread char text[64];
  snprintf(text, sizeof text, "simulated status %#x", status);
  *words = text;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value) {
  NEED_INIT();
  switch ((int)attribute) {
    case HSA_SYSTEM_INFO_VERSION_MAJOR:
    case HSA_SYSTEM_INFO_VERSION_MINOR: *(uint16_t *)value = 1; break;
    case HSA_SYSTEM_INFO_TIMESTAMP: *(uint64_t *)value = now(); break;
    case HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY: *(uint64_t *)value = FREQUENCY; break;
    case HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT: *(uint64_t *)value = UINT64_MAX; break;
    default: return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "system information %d", attribute);
  }
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
  NEED_INIT();
  hsa_status_t status = callback((hsa_agent_t){CPU_AGENT}, data);
  return status || G.no_gpu ? status : callback((hsa_agent_t){GPU_AGENT}, data);
}

static void put_text(void *value, const char *text) {
  memset(value, 0, 64);
  snprintf(value, 64, "%s", text);
}

API hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value) {
  NEED_INIT();
  if (agent.handle != CPU_AGENT && agent.handle != GPU_AGENT) return HSA_STATUS_ERROR_INVALID_AGENT;
  bool gpu = agent.handle == GPU_AGENT;
  switch ((int)attribute) {
    case HSA_AGENT_INFO_NAME: put_text(value, gpu ? G.name : "Simulated CPU"); break;
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME: put_text(value, gpu ? "Simulated Radeon" : "Simulated CPU"); break;
    case HSA_AGENT_INFO_DEVICE: *(uint32_t *)value = gpu ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU; break;
    case HSA_AGENT_INFO_WAVEFRONT_SIZE: *(uint32_t *)value = strncmp(G.name, "gfx9", 4) ? 32 : 64; break;
    case HSA_AGENT_INFO_QUEUE_MIN_SIZE: *(uint32_t *)value = 64; break;
    case HSA_AGENT_INFO_QUEUE_MAX_SIZE: *(uint32_t *)value = 131072; break;
    case HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT: *(uint32_t *)value = gpu ? 48 : 2; break;
    default: return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "agent information %d", attribute);
  }
  return HSA_STATUS_SUCCESS;
}
