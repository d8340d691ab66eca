// Marks the functions that the library exports; everything else is hidden.
#pragma once

#define ONNX_AI_RT_EXPORT __attribute__((visibility("default")))
