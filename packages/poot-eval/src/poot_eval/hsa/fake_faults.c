// What a packet must be, and how a runtime tells of faults.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static hsa_amd_system_event_callback_t handler;
static void *handler_data;

API hsa_status_t hsa_amd_register_system_event_handler(hsa_amd_system_event_callback_t callback, void *data) {
  NEED_INIT();
  if (handler) return HSA_STATUS_ERROR;   // one for each process
  handler = callback;
  handler_data = data;
  return HSA_STATUS_SUCCESS;
}

void report_event(uint32_t type, uint64_t address, uint32_t reason) {
  hsa_amd_event_t event;
  memset(&event, 0, sizeof event);
  event.event_type = (hsa_amd_event_type_t)type;
  event.memory_fault.agent.handle = GPU_AGENT;
  event.memory_fault.virtual_address = address;
  event.memory_fault.fault_reason_mask = reason;
  if (!handler || handler(&event, handler_data) != HSA_STATUS_SUCCESS) {
    fprintf(stderr, "Memory access fault by GPU node-1 (simulated) that no handler took\n");
    abort();
  }
}

// Whether every address of the arguments lies in memory that there is and that the GPU sees.
static const char *invalid_arguments(const uint64_t *words, size_t count) {
  for (size_t k = 0; k < count; k++) {
    if (!in_arena(words[k])) continue;
    const allocation *found = find_allocation((const void *)words[k], 1);
    if (!found) return "an argument points at memory that was freed";
    if (!found->visible) return "an argument points at memory that the GPU does not see";
  }
  return NULL;
}

const char *invalid_dispatch(const hsa_kernel_dispatch_packet_t *packet, const kernel *kernel, hsa_status_t *status) {
  *status = HSA_STATUS_ERROR_INVALID_PACKET_FORMAT;
  if (packet->reserved0 || packet->reserved2) return "a reserved field is not zero";
  int dimensions = packet->setup & 3;
  if (!dimensions || packet->setup >> 2) return "the dimensions of a dispatch are 1, 2 or 3";
  const uint32_t grid[] = {packet->grid_size_x, packet->grid_size_y, packet->grid_size_z};
  const uint32_t group[] = {packet->workgroup_size_x, packet->workgroup_size_y, packet->workgroup_size_z};
  uint32_t threads = 1;
  for (int k = 0; k < 3; k++) {
    if (!grid[k] || !group[k] || grid[k] % group[k]) return "a grid is not whole groups";
    if (k >= dimensions && (grid[k] != 1 || group[k] != 1)) return "a grid has more dimensions than the packet says";
    threads *= group[k];
  }
  if (threads > 1024) return "a group has more than 1,024 threads";
  *status = HSA_STATUS_ERROR_INVALID_CODE_OBJECT;
  if (!kernel) return "the kernel object is no loaded kernel descriptor";
  *status = HSA_STATUS_ERROR_INVALID_ALLOCATION;
  if (packet->group_segment_size < kernel->group_bytes) return "the group segment is smaller than the kernel's";
  if (packet->private_segment_size < kernel->private_bytes) return "the private segment is smaller than the kernel's";
  if (!kernel->kernarg_bytes) return NULL;
  *status = (hsa_status_t)HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION;
  if ((uint64_t)packet->kernarg_address & 15) return "the arguments are not aligned to 16 bytes";
  pthread_mutex_lock(&LOCK);
  const allocation *arguments = find_allocation(packet->kernarg_address, kernel->kernarg_bytes);
  const char *wrong = !arguments                        ? "the arguments do not lie in an allocation"
                      : !arguments->visible             ? "the GPU does not see the arguments"
                      : arguments->pool != POOL_KERNARG ? "the arguments do not lie in kernarg memory"
                                                        : NULL;
  if (!wrong) wrong = invalid_arguments(packet->kernarg_address, kernel->kernarg_bytes / 8);
  pthread_mutex_unlock(&LOCK);
  return wrong;
}
