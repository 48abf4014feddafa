# FlotillaTorch::torch: libtorch for CPU. Looks at FLOTILLA_TORCH (cache or environment: the folder that holds include, lib
# and share), then at Torch_DIR and CMAKE_PREFIX_PATH as `torch.utils.cmake_prefix_path` gives it. libtorch's own CMake
# package is not used: it would put its include folder first, which holds another fmt than the system's.
set(FLOTILLA_TORCH "$ENV{FLOTILLA_TORCH}" CACHE PATH "libtorch or a torch package folder that is already there")
if(NOT "${FLOTILLA_TORCH}" STREQUAL "${FlotillaTorch_WAS}")
  unset(FlotillaTorch_INCLUDE CACHE)
  unset(FlotillaTorch_CPU CACHE)
  unset(FlotillaTorch_C10 CACHE)
  set(FlotillaTorch_WAS "${FLOTILLA_TORCH}" CACHE INTERNAL "where libtorch was looked for")
endif()
set(_hints "${FLOTILLA_TORCH}")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _hints "${_prefix}/../..")
endforeach()
if(Torch_DIR)
  list(APPEND _hints "${Torch_DIR}/../../..")
endif()

find_path(FlotillaTorch_INCLUDE ATen/ATen.h HINTS ${_hints} PATH_SUFFIXES include)
find_library(FlotillaTorch_CPU torch_cpu HINTS ${_hints} PATH_SUFFIXES lib)
find_library(FlotillaTorch_C10 c10 HINTS ${_hints} PATH_SUFFIXES lib)
get_filename_component(_lib "${FlotillaTorch_CPU}" DIRECTORY)
# libtorch brings its OpenMP runtime; a second one would be a second set of threads.
file(GLOB _gomp "${_lib}/libgomp*.so*")

set(FlotillaTorch_VERSION "")
if(EXISTS "${FlotillaTorch_INCLUDE}/torch/headeronly/version.h")
  file(READ "${FlotillaTorch_INCLUDE}/torch/headeronly/version.h" _header)
  foreach(_part MAJOR MINOR PATCH)
    string(REGEX MATCH "TORCH_VERSION_${_part} ([0-9]+)" _ "${_header}")
    list(APPEND FlotillaTorch_VERSION "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN FlotillaTorch_VERSION "." FlotillaTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FlotillaTorch
  REQUIRED_VARS FlotillaTorch_CPU FlotillaTorch_C10 FlotillaTorch_INCLUDE
  VERSION_VAR FlotillaTorch_VERSION
  REASON_FAILURE_MESSAGE "Set FLOTILLA_TORCH to a libtorch 2.13 or to the folder of Python's torch package, or build \
without the learner: -DFLOTILLA_LEARNER=OFF")

if(FlotillaTorch_FOUND AND NOT TARGET FlotillaTorch::torch)
  add_library(FlotillaTorch::torch INTERFACE IMPORTED)
  # After the system's folders, so that <fmt/...> stays the system's; and as system headers, for their warnings.
  target_compile_options(FlotillaTorch::torch INTERFACE "SHELL:-idirafter ${FlotillaTorch_INCLUDE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(FlotillaTorch::torch INTERFACE -fopenmp)  # at::parallel_for is a template
  endif()
  target_link_libraries(FlotillaTorch::torch INTERFACE "${FlotillaTorch_CPU}" "${FlotillaTorch_C10}")
  # A CUDA build of libtorch names libraries of its own that the linker need not see.
  target_link_options(FlotillaTorch::torch INTERFACE -Wl,--allow-shlib-undefined)
  if(_gomp)
    list(GET _gomp 0 _gomp)
    target_link_libraries(FlotillaTorch::torch INTERFACE "${_gomp}")
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_libraries(FlotillaTorch::torch INTERFACE gomp)
  endif()
endif()
