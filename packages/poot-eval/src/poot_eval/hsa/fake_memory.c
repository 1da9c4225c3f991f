// Memory pools: every address ever given out is of one reserved range and is not given out again, so that what was
// freed is known, and pages that nobody may touch lie between allocations.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define PAGE 4096ull
#define ARENA_BYTES (1ull << 37)

static char *arena;
static uint64_t arena_used;
static allocation *live;   // ascending by address
static size_t live_count, live_room;
static uint64_t device_bytes;
static int users;          // of device memory, among them no host

static size_t pages(size_t nbytes) { return (nbytes + PAGE - 1) / PAGE * PAGE; }

// The place of the first allocation that ends behind an address.
static size_t place_of(const char *address) {
  size_t low = 0, high = live_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (live[middle].address + live[middle].nbytes > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

const allocation *find_allocation(const void *address, size_t nbytes) {
  size_t place = place_of(address);
  if (place == live_count || (const char *)address < live[place].address) return NULL;
  return (const char *)address + nbytes <= live[place].address + live[place].nbytes ? &live[place] : NULL;
}

bool in_arena(uint64_t address) {
  return arena && address >= (uint64_t)arena && address < (uint64_t)arena + ARENA_BYTES;
}

// What the GPU sees, up to `room` allocations; how many there are.
API long fake_visible(uint64_t *addresses, uint64_t *sizes, long room) {
  long count = 0;
  pthread_mutex_lock(&LOCK);
  for (size_t k = 0; k < live_count; k++) {
    if (!live[k].visible) continue;
    if (count < room) {
      addresses[count] = (uint64_t)live[k].address;
      sizes[count] = live[k].nbytes;
    }
    count++;
  }
  pthread_mutex_unlock(&LOCK);
  return count;
}

static void protect_device_memory(int access) {
  for (size_t k = 0; k < live_count; k++)
    if (live[k].pool == POOL_DEVICE) mprotect(live[k].address, pages(live[k].nbytes), access);
}

void set_guard(bool guard) {
  pthread_mutex_lock(&LOCK);
  if (G.guard != guard && !users) protect_device_memory(guard ? PROT_NONE : PROT_READ | PROT_WRITE);
  G.guard = guard;
  pthread_mutex_unlock(&LOCK);
}

void open_device_memory(void) {
  pthread_mutex_lock(&LOCK);
  if (users++ == 0 && G.guard) protect_device_memory(PROT_READ | PROT_WRITE);
  pthread_mutex_unlock(&LOCK);
}

void close_device_memory(void) {
  pthread_mutex_lock(&LOCK);
  if (--users == 0 && G.guard) protect_device_memory(PROT_NONE);
  pthread_mutex_unlock(&LOCK);
}

API hsa_status_t hsa_amd_agent_iterate_memory_pools(
    hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data) {
  NEED_INIT();
  if (agent.handle == GPU_AGENT) return callback((hsa_amd_memory_pool_t){POOL_DEVICE}, data);
  hsa_status_t status = callback((hsa_amd_memory_pool_t){POOL_KERNARG}, data);
  return status ? status : callback((hsa_amd_memory_pool_t){POOL_HOST}, data);
}

API hsa_status_t hsa_amd_memory_pool_get_info(
    hsa_amd_memory_pool_t pool, hsa_amd_memory_pool_info_t attribute, void *value) {
  NEED_INIT();
  uint32_t flags = pool.handle == POOL_DEVICE    ? HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED
                   : pool.handle == POOL_KERNARG ? HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT |
                                                       HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED
                                                 : HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
  switch ((int)attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_SEGMENT: *(uint32_t *)value = HSA_AMD_SEGMENT_GLOBAL; break;
    case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: *(uint32_t *)value = flags; break;
    case HSA_AMD_MEMORY_POOL_INFO_SIZE: *(size_t *)value = G.limit; break;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED: *(bool *)value = true; break;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE: *(size_t *)value = PAGE; break;
    default: return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "pool information %d", attribute);
  }
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_amd_memory_pool_allocate(
    hsa_amd_memory_pool_t pool, size_t nbytes, uint32_t flags, void **address) {
  NEED_INIT();
  if (!nbytes || flags) return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "an allocation of %zu bytes", nbytes);
  pthread_mutex_lock(&LOCK);
  bool device = pool.handle == POOL_DEVICE;
  if (!arena) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) abort();
  }
  hsa_status_t status = HSA_STATUS_SUCCESS;
  if (device && nbytes > G.limit) {
    status = HSA_STATUS_ERROR_INVALID_ALLOCATION;
  } else if (nbytes > ARENA_BYTES || arena_used + pages(nbytes) + PAGE > ARENA_BYTES ||
      (device && device_bytes + pages(nbytes) > G.limit)) {
    status = HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  } else {
    if (live_count == live_room) live = realloc(live, (live_room = live_room * 2 + 64) * sizeof *live);
    allocation made = {arena + arena_used + PAGE, nbytes, pool.handle, device};
    arena_used += pages(nbytes) + PAGE;
    device_bytes += device ? pages(nbytes) : 0;
    live[live_count++] = made;   // addresses only grow
    bool shut = device && G.guard && !users;
    if (!shut) mprotect(made.address, pages(nbytes), PROT_READ | PROT_WRITE);
    if (!shut) memset(made.address, 0xA5, nbytes);   // what the real ones hold is not zero either
    G.allocations++;
    *address = made.address;
  }
  pthread_mutex_unlock(&LOCK);
  return status;
}

API hsa_status_t hsa_amd_memory_pool_free(void *address) {
  NEED_INIT();
  pthread_mutex_lock(&LOCK);
  size_t place = place_of(address);
  hsa_status_t status = HSA_STATUS_ERROR_INVALID_ALLOCATION;
  if (place < live_count && live[place].address == address) {
    size_t length = pages(live[place].nbytes);
    if (live[place].pool == POOL_DEVICE) device_bytes -= length;
    madvise(address, length, MADV_DONTNEED);
    mprotect(address, length, PROT_NONE);
    memmove(&live[place], &live[place + 1], (--live_count - place) * sizeof *live);
    G.allocations--;
    status = HSA_STATUS_SUCCESS;
  }
  pthread_mutex_unlock(&LOCK);
  return status;
}

// For executors: the allocation at a place among those that there are, in the order of addresses.
API bool fake_allocation(long place, uint64_t *address, uint64_t *nbytes, bool *visible) {
  pthread_mutex_lock(&LOCK);
  bool found = place >= 0 && (size_t)place < live_count;
  if (found) {
    *address = (uint64_t)live[place].address;
    *nbytes = live[place].nbytes;
    *visible = live[place].visible;
  }
  pthread_mutex_unlock(&LOCK);
  return found;
}

API hsa_status_t hsa_amd_agents_allow_access(
    uint32_t count, const hsa_agent_t *agents, const uint32_t *flags, const void *address) {
  NEED_INIT();
  if (flags) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&LOCK);
  size_t place = place_of(address);
  bool found = place < live_count && live[place].address == address;
  for (uint32_t k = 0; found && k < count; k++) live[place].visible |= agents[k].handle == GPU_AGENT;
  pthread_mutex_unlock(&LOCK);
  return found ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_INVALID_ALLOCATION;
}

// Copies run on a thread of their own: who does not wait for one sees it late.

typedef struct {
  void *target;
  const void *source;
  size_t nbytes;
  hsa_signal_t done;
} copy;

static void *run_copy(void *argument) {
  copy *job = argument;
  int status;
  if (injected(true, &status) == INJECT_COPY_ERROR) {
    set_signal(job->done, -1);
  } else {
    uint64_t start = now();
    open_device_memory();
    memcpy(job->target, job->source, job->nbytes);
    close_device_memory();
    __atomic_add_fetch(&G.copies, 1, __ATOMIC_RELAXED);
    count_down(job->done, start, now());
  }
  free(job);
  return NULL;
}

API hsa_status_t hsa_amd_memory_async_copy(
    void *target, hsa_agent_t target_agent, const void *source, hsa_agent_t source_agent, size_t nbytes,
    uint32_t dependencies, const hsa_signal_t *depends, hsa_signal_t done) {
  NEED_INIT();
  if (dependencies || depends || !done.handle || !nbytes) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&LOCK);
  const allocation *to = find_allocation(target, nbytes), *from = find_allocation(source, nbytes);
  bool known = to && from && to->visible && from->visible;
  const uint64_t pools[] = {to ? to->pool : 0, from ? from->pool : 0};
  pthread_mutex_unlock(&LOCK);
  if (!known) return refuse(HSA_STATUS_ERROR_INVALID_ALLOCATION, "a copy of memory that the GPU does not see");
  const hsa_agent_t agents[] = {target_agent, source_agent};
  for (int k = 0; k < 2; k++)
    if (agents[k].handle != (pools[k] == POOL_DEVICE ? GPU_AGENT : CPU_AGENT)) return HSA_STATUS_ERROR_INVALID_AGENT;
  copy *job = malloc(sizeof *job);
  *job = (copy){target, source, nbytes, done};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_copy, job)) abort();
  pthread_detach(thread);
  return HSA_STATUS_SUCCESS;
}
