/* A Vulkan layer that stands between the loader and the driver and answers in the driver's place when it is told to.

   `fault_arm` lets the k-th call of a function from then on, and so many after it, give another result without reaching
   the driver; a lost
   device stays lost: every later call of a listed function gives the same. `fault_hang` swallows submissions from the
   k-th on: they are accepted and never run, so that no fence or semaphore of theirs is ever signalled.
   `fault_fragile` lets devices have no robust buffer access. One driver at a time. No header of Vulkan is needed: what
   is used of the interface is declared here. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int32_t Result;
typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);

enum { SUCCESS = 0, DEVICE_LOST = -4, INITIALIZATION_FAILED = -3, INSTANCE_INFO = 47, DEVICE_INFO = 48, LINK = 0 };

typedef struct Link {
    struct Link *next;
    Lookup instance;
    Lookup second; /* of a device: functions of devices */
} Link;

typedef struct Chain {
    int32_t type;
    const struct Chain *next;
    int32_t function;
    Link *link;
} Chain;

static Lookup next_instance, next_device;
static Function next_create_device, next_features; /* of the last instance */
static int fragile;
static long hang_at = -1, submitted;
static int lost;

/* Functions that can be told what to answer, with the types of their arguments. */
#define HOOKS(X) \
    X(vkQueueSubmit, (void *a, uint32_t b, const void *c, uint64_t d), (a, b, c, d)) \
    X(vkQueueWaitIdle, (void *a), (a)) \
    X(vkDeviceWaitIdle, (void *a), (a)) \
    X(vkWaitForFences, (void *a, uint32_t b, const void *c, uint32_t d, uint64_t e), (a, b, c, d, e)) \
    X(vkResetFences, (void *a, uint32_t b, const void *c), (a, b, c)) \
    X(vkGetFenceStatus, (void *a, uint64_t b), (a, b)) \
    X(vkWaitSemaphores, (void *a, const void *b, uint64_t c), (a, b, c)) \
    X(vkGetSemaphoreCounterValue, (void *a, uint64_t b, void *c), (a, b, c)) \
    X(vkCreateFence, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkCreateBuffer, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkAllocateMemory, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkMapMemory, (void *a, uint64_t b, uint64_t c, uint64_t d, uint32_t e, void *f), (a, b, c, d, e, f)) \
    X(vkBindBufferMemory, (void *a, uint64_t b, uint64_t c, uint64_t d), (a, b, c, d)) \
    X(vkAllocateCommandBuffers, (void *a, const void *b, void *c), (a, b, c)) \
    X(vkBeginCommandBuffer, (void *a, const void *b), (a, b)) \
    X(vkEndCommandBuffer, (void *a), (a)) \
    X(vkCreateShaderModule, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkCreateComputePipelines, (void *a, uint64_t b, uint32_t c, const void *d, const void *e, void *f), \
      (a, b, c, d, e, f)) \
    X(vkCreateDescriptorSetLayout, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkCreatePipelineLayout, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkCreateDescriptorPool, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkAllocateDescriptorSets, (void *a, const void *b, void *c), (a, b, c)) \
    X(vkCreateQueryPool, (void *a, const void *b, const void *c, void *d), (a, b, c, d)) \
    X(vkGetPipelineCacheData, (void *a, uint64_t b, void *c, void *d), (a, b, c, d))

#define PLACE(name, types, values) place_##name,
enum { HOOKS(PLACE) HOOK_COUNT };

typedef struct {
    const char *name;
    Function hook, next;
    long calls, at, until;
    Result result;
} Hook;

static Hook hooks[HOOK_COUNT];

/* Whether the layer answers this call itself. */
static int answers(int place, Result *result) {
    Hook *hook = &hooks[place];
    long call = hook->calls++;
    if (lost) {
        *result = DEVICE_LOST;
        return 1;
    }
    if (hook->at < 0 || call < hook->at || call >= hook->until) return 0;
    lost = hook->result == DEVICE_LOST;
    *result = hook->result;
    return 1;
}

static int swallowed(int place) { return place == place_vkQueueSubmit && hang_at >= 0 && submitted++ >= hang_at; }

#define DEFINE(name, types, values) \
    static Result hook_##name types { \
        Result result; \
        if (answers(place_##name, &result)) return result; \
        if (swallowed(place_##name)) return SUCCESS; \
        return ((Result(*) types)hooks[place_##name].next)values; \
    }
HOOKS(DEFINE)

#define ROW(name, types, values) {#name, (Function)hook_##name, 0, 0, -1, -1, SUCCESS},
static Hook hooks[HOOK_COUNT] = {HOOKS(ROW)};

static Hook *find(const char *name) {
    for (int place = 0; place < HOOK_COUNT; place++)
        if (!strcmp(hooks[place].name, name)) return &hooks[place];
    return NULL;
}

static Chain *link_of(const void *info, int32_t type) {
    for (Chain *chain = *(Chain **)((const char *)info + sizeof(void *)); chain; chain = (Chain *)chain->next)
        if (chain->type == type && chain->function == LINK) return chain;
    return NULL;
}

static Result create_instance(const void *info, const void *allocator, void **made) {
    Chain *chain = link_of(info, INSTANCE_INFO);
    if (!chain) return INITIALIZATION_FAILED;
    next_instance = chain->link->instance;
    chain->link = chain->link->next;
    Function next = next_instance(NULL, "vkCreateInstance");
    Result result = ((Result(*)(const void *, const void *, void **))next)(info, allocator, made);
    if (result == SUCCESS) {
        /* Asked now: later the loader answers with the chain's own first layer. */
        next_create_device = next_instance(*made, "vkCreateDevice");
        next_features = next_instance(*made, "vkGetPhysicalDeviceFeatures2");
    }
    return result;
}

static Result create_device(void *physical, const void *info, const void *allocator, void **made) {
    Chain *chain = link_of(info, DEVICE_INFO);
    if (!chain) return INITIALIZATION_FAILED;
    Function next = next_create_device;
    next_device = chain->link->second;
    chain->link = chain->link->next;
    Result result = ((Result(*)(void *, const void *, const void *, void **))next)(physical, info, allocator, made);
    if (result == SUCCESS)
        for (int place = 0; place < HOOK_COUNT; place++) {
            hooks[place].next = next_device(*made, hooks[place].name);
            if (!hooks[place].next && place == place_vkWaitSemaphores)
                hooks[place].next = next_device(*made, "vkWaitSemaphoresKHR");
            if (!hooks[place].next && place == place_vkGetSemaphoreCounterValue)
                hooks[place].next = next_device(*made, "vkGetSemaphoreCounterValueKHR");
        }
    return result;
}

static void get_features(void *physical, void *features) {
    ((void (*)(void *, void *))next_features)(physical, features);
    /* After sType and pNext: robustBufferAccess is the first feature. */
    if (fragile) *(uint32_t *)((char *)features + 2 * sizeof(void *)) = 0;
}

static Function device_function(void *device, const char *name);

static Function hooked(const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (Function)device_function;
    Hook *hook = find(name);
    if (!hook && !strcmp(name, "vkWaitSemaphoresKHR")) hook = &hooks[place_vkWaitSemaphores];
    if (!hook && !strcmp(name, "vkGetSemaphoreCounterValueKHR")) hook = &hooks[place_vkGetSemaphoreCounterValue];
    return hook ? hook->hook : NULL;
}

static Function device_function(void *device, const char *name) {
    Function found = hooked(name);
    /* What the driver lacks, this layer does not add. */
    Function next = next_device ? next_device(device, name) : NULL;
    return found && (next || !strcmp(name, "vkGetDeviceProcAddr")) ? found : next;
}

static Function instance_function(void *of, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (Function)instance_function;
    if (!strcmp(name, "vkCreateInstance")) return (Function)create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (Function)create_device;
    if (!strcmp(name, "vkGetPhysicalDeviceFeatures2")) return (Function)get_features;
    Function found = hooked(name);
    return found ? found : next_instance ? next_instance(of, name) : NULL;
}

typedef struct {
    int32_t type;
    void *next;
    uint32_t version;
    Lookup instance, device, physical;
} Negotiation;

EXPORT Result vkNegotiateLoaderLayerInterfaceVersion(Negotiation *asked) {
    asked->version = 2;
    asked->instance = instance_function;
    asked->device = device_function;
    asked->physical = NULL;
    return SUCCESS;
}

/* What a test asks for. */

EXPORT void fault_clear(void) {
    for (int place = 0; place < HOOK_COUNT; place++) hooks[place].at = -1;
    fragile = lost = 0;
    hang_at = -1;
}

EXPORT int fault_arm(const char *name, long call, long times, Result result) {
    Hook *hook = find(name);
    if (!hook) return 0;
    hook->at = hook->calls + call;
    hook->until = hook->at + times;
    hook->result = result;
    return 1;
}

EXPORT long fault_calls(const char *name) {
    Hook *hook = find(name);
    return hook ? hook->calls : -1;
}

EXPORT long fault_all_calls(void) {
    long total = 0;
    for (int place = 0; place < HOOK_COUNT; place++) total += hooks[place].calls;
    return total;
}

EXPORT void fault_hang(long call) {
    submitted = 0;
    hang_at = call;
}

EXPORT void fault_fragile(int yes) { fragile = yes; }
