#include <cstdio>
#include <string>
import gpumem;

int main(int, char** arguments) {
  std::string const file = std::string{arguments[0]} + ".log";
  gpumem::logging_adaptor logged{
      gpumem::pool_resource{gpumem::device{0}}, file, {.format = gpumem::log_format::binary}};
  gpumem::stream stream{gpumem::device{0}};
  for (std::size_t bytes = 256; bytes <= 1 << 20; bytes *= 2) {
    void* const block = logged.allocate(stream, bytes);
    logged.deallocate(stream, block, bytes);
  }
  std::printf("%s\n", logged.flush() ? "written" : "the file cannot be written");
}
