#include "cli/app.hpp"

int main(int argc, char** argv) { return ordo::cli::run(argc, argv); }
