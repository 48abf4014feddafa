# flotilla_module(NAME [DEPS module...] [LIBS library...] [TEST_LIBS library...] [TEST_LABEL label])
#
# Makes the static library flotilla_NAME from every .cc file of the current folder, and the test program NAME_test from
# its *_test.cc files. DEPS are modules of a lower layer (tools/check_layers.py fails on any other include); LIBS are
# foreign libraries.
include(GoogleTest)
find_package(GTest REQUIRED)
find_package(Threads REQUIRED)

add_library(flotilla_options INTERFACE)
target_include_directories(flotilla_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
# -ffp-contract=off: GCC fuses a*b+c by itself even with -std=c++20, and the exact arithmetic (ARCHITECTURE.md) allows a
# fused operation only where one is written.
target_compile_options(flotilla_options INTERFACE -Wall -Wextra -Werror -ffp-contract=off)
target_compile_definitions(flotilla_options INTERFACE FLOTILLA_VERSION="${PROJECT_VERSION}")
# For generator expressions, which the comma of "address,undefined" would take apart.
string(COMPARE NOTEQUAL "${FLOTILLA_SANITIZE}" "" FLOTILLA_SANITIZED)
if(FLOTILLA_SANITIZED)
  target_compile_options(flotilla_options INTERFACE -fsanitize=${FLOTILLA_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all)
  target_link_options(flotilla_options INTERFACE -fsanitize=${FLOTILLA_SANITIZE})
endif()
target_link_libraries(flotilla_options INTERFACE Threads::Threads)

function(flotilla_module name)
  cmake_parse_arguments(M "" "TEST_LABEL" "DEPS;LIBS;TEST_LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM M_DEPS PREPEND flotilla_)
  if(sources)
    add_library(flotilla_${name} STATIC ${sources})
    target_link_libraries(flotilla_${name} PUBLIC flotilla_options ${M_DEPS} PRIVATE ${M_LIBS})
  else()
    add_library(flotilla_${name} INTERFACE)
    target_link_libraries(flotilla_${name} INTERFACE flotilla_options ${M_DEPS} ${M_LIBS})
  endif()
  if(FLOTILLA_TESTS AND tests)
    if(NOT M_TEST_LABEL)
      set(M_TEST_LABEL fast)
    endif()
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE flotilla_${name} ${M_LIBS} ${M_TEST_LIBS} GTest::gmock GTest::gtest_main)
    gtest_discover_tests(${name}_test PROPERTIES LABELS ${M_TEST_LABEL} TIMEOUT 900 DISCOVERY_TIMEOUT 60
      WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  endif()
endfunction()
