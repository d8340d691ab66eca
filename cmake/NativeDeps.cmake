# Finds Google Highway (target hwy::hwy) and the headers of ONNX Runtime's C API (target onnxruntime_headers), from the
# first of: a prefix that the user names in CMAKE_PREFIX_PATH, the system, .deps in the checkout, Debian's packages
# unpacked into .deps, the upstream projects.

set(hwy_version 1.2.0)
set(onnxruntime_version 1.21.0)
set(onnxruntime_api_version 21) # what ONNX Runtime 1.21 and every later one offers
set(deps_prefix ${PROJECT_SOURCE_DIR}/.deps)

# A validator for find_path: refuses headers older than needed.
function(accept_onnxruntime_headers ok folder)
  file(STRINGS ${folder}/onnxruntime_c_api.h line REGEX "^#define ORT_API_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+$" api "${line}")
  if(NOT api GREATER_EQUAL onnxruntime_api_version)
    set(${ok} FALSE PARENT_SCOPE)
  endif()
endfunction()

macro(find_native_deps)
  find_package(hwy ${hwy_version} CONFIG QUIET ${ARGN})
  find_path(ONNXRUNTIME_INCLUDE_DIR onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session
            VALIDATOR accept_onnxruntime_headers ${ARGN})
endmacro()

find_native_deps()
if(NOT (hwy_FOUND AND ONNXRUNTIME_INCLUDE_DIR))
  if(NOT EXISTS ${deps_prefix})
    find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
    execute_process(COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/get_native_deps.py ${deps_prefix}
                    ERROR_VARIABLE deps_error)
  endif()
  find_native_deps(PATHS ${deps_prefix}/usr ${deps_prefix}/usr/include NO_DEFAULT_PATH)
endif()

if(NOT (hwy_FOUND AND ONNXRUNTIME_INCLUDE_DIR))
  message(STATUS "No Debian packages (${deps_error}): fetching Highway and ONNX Runtime's headers from upstream")
  include(FetchContent)
  foreach(option HWY_ENABLE_CONTRIB HWY_ENABLE_EXAMPLES HWY_ENABLE_INSTALL HWY_ENABLE_TESTS BUILD_SHARED_LIBS)
    set(${option} OFF CACHE BOOL "")
  endforeach()
  FetchContent_Declare(hwy SYSTEM
                       URL https://github.com/google/highway/archive/refs/tags/${hwy_version}.tar.gz)
  FetchContent_Declare(onnxruntime
                       URL https://github.com/microsoft/onnxruntime/archive/refs/tags/v${onnxruntime_version}.tar.gz
                       SOURCE_SUBDIR not-built)
  if(NOT hwy_FOUND)
    FetchContent_MakeAvailable(hwy)
    add_library(hwy::hwy ALIAS hwy)
  endif()
  if(NOT ONNXRUNTIME_INCLUDE_DIR)
    FetchContent_MakeAvailable(onnxruntime)
    set(ONNXRUNTIME_INCLUDE_DIR ${onnxruntime_SOURCE_DIR}/include/onnxruntime/core/session)
  endif()
endif()

add_library(onnxruntime_headers INTERFACE)
target_include_directories(onnxruntime_headers SYSTEM INTERFACE ${ONNXRUNTIME_INCLUDE_DIR})
message(STATUS "ONNX Runtime headers: ${ONNXRUNTIME_INCLUDE_DIR}; Highway ${hwy_VERSION}: ${hwy_DIR}${hwy_SOURCE_DIR}")
