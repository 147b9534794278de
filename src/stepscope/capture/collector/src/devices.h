// The GPUs of the process, asked of the driver that is already there.
#pragma once
#include "util.h"

namespace stepscope {

// Adds "devices":[...] to a JSON object; an empty list where the driver does not answer.
void add_devices(Text& json);
// Whether the driver still answers: after its teardown no CUPTI function may be called.
bool driver_alive();

}  // namespace stepscope
