// Code objects: a small loader of AMDGPU ELF files, which refuses what the real one refuses.

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define DESCRIPTOR_BYTES 64
#define MACHINE_AMDGPU 224
#define OSABI_HSA 64

typedef struct {
  const void *code;
  size_t nbytes;
} reader;

typedef struct executable {
  char *image;
  size_t nbytes;
  void *code;   // a copy: the caller's may go once it is loaded
  kernel *kernels;
  bool frozen;
  struct executable *next;
} executable;

static executable *loaded;

const kernel *find_kernel(uint64_t object) {
  const kernel *found = NULL;
  pthread_mutex_lock(&LOCK);
  for (executable *e = loaded; e && !found; e = e->next)
    for (kernel *k = e->frozen ? e->kernels : NULL; k && !found; k = k->next)
      if (k->object == object) found = k;
  pthread_mutex_unlock(&LOCK);
  return found;
}

API hsa_status_t hsa_code_object_reader_create_from_memory(
    const void *code, size_t nbytes, hsa_code_object_reader_t *made) {
  NEED_INIT();
  reader *r = malloc(sizeof *r);
  *r = (reader){code, nbytes};
  made->handle = (uint64_t)r;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t made) {
  NEED_INIT();
  free((void *)made.handle);
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_executable_create_alt(
    hsa_profile_t profile, hsa_default_float_rounding_mode_t rounding, const char *options, hsa_executable_t *made) {
  NEED_INIT();
  (void)profile, (void)rounding, (void)options;
  executable *e = calloc(1, sizeof *e);
  pthread_mutex_lock(&LOCK);
  e->next = loaded;
  loaded = e;
  pthread_mutex_unlock(&LOCK);
  made->handle = (uint64_t)e;
  return HSA_STATUS_SUCCESS;
}

static void add_kernels(executable *e, const Elf64_Shdr *sections, const Elf64_Shdr *symbols) {
  const char *code = e->code, *names = code + sections[symbols->sh_link].sh_offset;
  const Elf64_Sym *all = (const void *)(code + symbols->sh_offset);
  for (size_t k = 0; k < symbols->sh_size / sizeof *all; k++) {
    const char *name = names + all[k].st_name;
    size_t length = strlen(name);
    if (length < 4 || strcmp(name + length - 3, ".kd") || all[k].st_size != DESCRIPTOR_BYTES) continue;
    kernel *made = calloc(1, sizeof *made);
    const uint32_t *descriptor = (const void *)(e->image + all[k].st_value);
    snprintf(made->entry, sizeof made->entry, "%.*s", (int)length - 3, name);
    made->object = (uint64_t)descriptor;
    made->group_bytes = descriptor[0];
    made->private_bytes = descriptor[1];
    made->kernarg_bytes = descriptor[2];
    made->next = e->kernels;
    e->kernels = made;
  }
}

API hsa_status_t hsa_executable_load_agent_code_object(
    hsa_executable_t made, hsa_agent_t agent, hsa_code_object_reader_t from, const char *options,
    hsa_loaded_code_object_t *object) {
  NEED_INIT();
  (void)options, (void)object;
  executable *e = (executable *)made.handle;
  const reader *r = (const reader *)from.handle;
  const Elf64_Ehdr *head = r->code;
  if (agent.handle != GPU_AGENT) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (e->frozen || e->code) return HSA_STATUS_ERROR_FROZEN_EXECUTABLE;
  if (r->nbytes < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != MACHINE_AMDGPU ||
      head->e_ident[EI_OSABI] != OSABI_HSA || head->e_type != ET_DYN)
    return refuse(HSA_STATUS_ERROR_INVALID_CODE_OBJECT, "no shared object for AMD's HSA");
  if ((head->e_flags & 0xFF) != G.machine)
    return refuse(
        HSA_STATUS_ERROR_INVALID_ISA, "a code object for machine %#x on %s, which is %#x", head->e_flags & 0xFF, G.name,
        G.machine);
  e->code = malloc(r->nbytes);
  memcpy(e->code, r->code, r->nbytes);
  const char *code = e->code;
  size_t nbytes = r->nbytes;
  const Elf64_Phdr *segments = (const void *)(code + head->e_phoff);
  for (int k = 0; k < head->e_phnum; k++)
    if (segments[k].p_type == PT_LOAD && segments[k].p_vaddr + segments[k].p_memsz > e->nbytes)
      e->nbytes = segments[k].p_vaddr + segments[k].p_memsz;
  if (!e->nbytes) return refuse(HSA_STATUS_ERROR_INVALID_CODE_OBJECT, "nothing to load");
  e->image = mmap(NULL, e->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int k = 0; k < head->e_phnum; k++)
    if (segments[k].p_type == PT_LOAD)
      memcpy(e->image + segments[k].p_vaddr, code + segments[k].p_offset, segments[k].p_filesz);
  const Elf64_Shdr *sections = (const void *)(code + head->e_shoff);
  for (int k = 0; k < head->e_shnum; k++)
    if (sections[k].sh_type == SHT_DYNSYM) add_kernels(e, sections, &sections[k]);
  for (kernel *k = e->kernels; k; k = k->next) {
    k->code_object = e->code;
    k->code_object_bytes = nbytes;
  }
  return e->kernels ? HSA_STATUS_SUCCESS : refuse(HSA_STATUS_ERROR_INVALID_CODE_OBJECT, "no kernels");
}

API hsa_status_t hsa_executable_freeze(hsa_executable_t made, const char *options) {
  NEED_INIT();
  (void)options;
  executable *e = (executable *)made.handle;
  if (e->frozen) return HSA_STATUS_ERROR_FROZEN_EXECUTABLE;
  e->frozen = true;
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_executable_destroy(hsa_executable_t made) {
  NEED_INIT();
  executable *e = (executable *)made.handle;
  pthread_mutex_lock(&LOCK);
  for (executable **at = &loaded; *at; at = &(*at)->next)
    if (*at == e) {
      *at = e->next;
      break;
    }
  pthread_mutex_unlock(&LOCK);
  while (e->kernels) {
    kernel *next = e->kernels->next;
    free(e->kernels);
    e->kernels = next;
  }
  if (e->image) munmap(e->image, e->nbytes);
  free(e->code);
  free(e);
  return HSA_STATUS_SUCCESS;
}

API hsa_status_t hsa_executable_get_symbol_by_name(
    hsa_executable_t made, const char *name, const hsa_agent_t *agent, hsa_executable_symbol_t *symbol) {
  NEED_INIT();
  (void)agent;
  const executable *e = (const executable *)made.handle;
  if (!e->frozen) return refuse(HSA_STATUS_ERROR_INVALID_EXECUTABLE, "not frozen");
  size_t length = strlen(name);
  for (const kernel *k = e->kernels; k; k = k->next)
    if (strlen(k->entry) + 3 == length && !strncmp(k->entry, name, length - 3) && !strcmp(name + length - 3, ".kd")) {
      symbol->handle = (uint64_t)k;
      return HSA_STATUS_SUCCESS;
    }
  return refuse(HSA_STATUS_ERROR_INVALID_SYMBOL_NAME, "no symbol %s", name);
}

API hsa_status_t hsa_executable_symbol_get_info(
    hsa_executable_symbol_t symbol, hsa_executable_symbol_info_t attribute, void *value) {
  NEED_INIT();
  const kernel *k = (const kernel *)symbol.handle;
  switch ((int)attribute) {
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT: *(uint64_t *)value = k->object; break;
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE: *(uint32_t *)value = k->kernarg_bytes; break;
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE: *(uint32_t *)value = k->group_bytes; break;
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE: *(uint32_t *)value = k->private_bytes; break;
    default: return refuse(HSA_STATUS_ERROR_INVALID_ARGUMENT, "symbol information %d", attribute);
  }
  return HSA_STATUS_SUCCESS;
}
