#include "devices.h"

#include <dlfcn.h>

namespace stepscope {
namespace {

template <class F>
F driver(const char* name) {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return handle ? reinterpret_cast<F>(dlsym(handle, name)) : nullptr;
}

// CU_DEVICE_ATTRIBUTE_* numbers.
constexpr struct {
  const char* name;
  int attribute;
} kAttributes[] = {{"sm_count", 16},      {"compute_major", 75},   {"compute_minor", 76},
                   {"clock_khz", 13},     {"memory_clock_khz", 36}, {"memory_bus_bits", 37},
                   {"l2_bytes", 38}};

}  // namespace

bool driver_alive() {
  auto count = driver<int (*)(int*)>("cuDeviceGetCount");
  int devices = 0;
  return !count || count(&devices) == 0;
}

void add_devices(Text& json) {
  json.add("\"devices\":[");
  auto count = driver<int (*)(int*)>("cuDeviceGetCount");
  auto get = driver<int (*)(int*, int)>("cuDeviceGet");
  auto name = driver<int (*)(char*, int, int)>("cuDeviceGetName");
  auto attribute = driver<int (*)(int*, int, int)>("cuDeviceGetAttribute");
  auto memory = driver<int (*)(size_t*, int)>("cuDeviceTotalMem_v2");
  auto uuid = driver<int (*)(unsigned char*, int)>("cuDeviceGetUuid_v2");
  if (!uuid) uuid = driver<int (*)(unsigned char*, int)>("cuDeviceGetUuid");
  auto bus = driver<int (*)(char*, int, int)>("cuDeviceGetPCIBusId");
  int devices = 0;
  if (count && get && count(&devices) != 0) devices = 0;
  for (int ordinal = 0; ordinal < devices; ordinal++) {
    int device = 0;
    if (get(&device, ordinal) != 0) break;
    char text[256] = "";
    if (name) name(text, sizeof text, device);
    json.format("%s{\"device\":%d,\"name\":", ordinal ? "," : "", ordinal);
    json.quote(text);
    for (auto& it : kAttributes) {
      int value = 0;
      if (attribute && attribute(&value, it.attribute, device) == 0)
        json.format(",\"%s\":%d", it.name, value);
    }
    size_t bytes = 0;
    if (memory && memory(&bytes, device) == 0) json.format(",\"memory_bytes\":%zu", bytes);
    unsigned char id[16];
    if (uuid && uuid(id, device) == 0) {
      json.add(",\"uuid\":\"GPU-");
      for (int i = 0; i < 16; i++)
        json.format("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
      json.add("\"");
    }
    if (bus && bus(text, sizeof text, device) == 0) {
      json.add(",\"pci_bus\":");
      json.quote(text);
    }
    json.add("}");
  }
  json.add("]");
}

}  // namespace stepscope
