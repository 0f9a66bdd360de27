# Included by llama.cpp's own project() call (CMAKE_PROJECT_llama.cpp_INCLUDE).
#
# `common` holds chat parsers and command-line helpers that the Python binding never calls. The
# `llama` library has about a hundred small architecture files that include the same headers:
# compiling a dozen at a time takes a third of the work. Wider unity builds break ggml.
set(LLAMA_BUILD_COMMON OFF)
cmake_language(DEFER CALL set_target_properties llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
