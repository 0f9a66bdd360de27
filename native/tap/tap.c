/* Boundary tap: copies the one tensor that crosses a seam out of libllama's graph, then stops it.
 *
 * libllama calls `ggml_backend_sched_eval_callback` for every node of its compute graph, twice:
 * first with ask = true ("do you want to see this one?"), then, for those wanted, with ask = false
 * once the node is computed. Returning false the second time ends the graph, so the final norm
 * and the output matrix behind a head's or a middle shard's last layer are never computed.
 *
 * One llama_decode may run several graphs (a batch whose sequences aren't neighbours is split), so
 * captures append; rows arrive in the batch's order because the caller sorts it by sequence.
 *
 * Native on purpose: a Python callback would take the interpreter lock some 25 times a layer.
 * Nothing of ggml is linked here; its three functions are handed in as pointers, so this file
 * works with every libllama build whose callback has this signature.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef const char *(*name_fn)(const void *tensor);
typedef size_t (*size_fn)(const void *tensor);
typedef void (*read_fn)(const void *tensor, void *data, size_t offset, size_t size);

typedef struct {
  char name[64]; /* GGML_MAX_NAME */
  unsigned char *buffer;
  size_t capacity;
  int64_t captured; /* bytes since the tap was armed; negative means TAP_OVERFLOW */
  name_fn get_name;
  size_fn get_size;
  read_fn read;
} tap;

enum { TAP_OVERFLOW = -1 };

/* NULL when the name is too long or memory is short. `buffer` stays the caller's. */
EXPORT tap *meshnet_tap_new(const char *name, void *buffer, size_t capacity, name_fn get_name,
                            size_fn get_size, read_fn read) {
  tap *self = calloc(1, sizeof *self);
  if (self == NULL) return NULL;
  if (strlen(name) >= sizeof self->name) {
    free(self);
    return NULL;
  }
  strcpy(self->name, name);
  self->buffer = buffer;
  self->capacity = capacity;
  self->captured = 0;
  self->get_name = get_name;
  self->get_size = get_size;
  self->read = read;
  return self;
}

EXPORT void meshnet_tap_free(tap *self) { free(self); }

/* Forget what was captured. Call before each llama_decode. */
EXPORT void meshnet_tap_arm(tap *self) { self->captured = 0; }

EXPORT int64_t meshnet_tap_captured(const tap *self) { return self->captured; }

/* The callback itself; `user_data` is the tap. */
EXPORT bool meshnet_tap_eval(const void *tensor, bool ask, void *user_data) {
  tap *self = user_data;
  bool wanted = strcmp(self->get_name(tensor), self->name) == 0;
  if (ask) return wanted;
  if (!wanted) return true;
  size_t size = self->get_size(tensor);
  if (self->captured < 0 || size > self->capacity - (size_t)self->captured) {
    self->captured = TAP_OVERFLOW;
    return false;
  }
  self->read(tensor, self->buffer + self->captured, 0, size);
  self->captured += (int64_t)size;
  return false;
}

/* Whether none of the float32 values is an infinity or no number: those have an exponent of ones.
 * Here because it is asked of every row that crosses a seam; `values` needn't be aligned. */
EXPORT bool meshnet_tap_finite(const void *values, size_t count) {
  const unsigned char *bytes = values;
  const uint32_t exponent = 0x7f800000u;
  bool finite = true;
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}
