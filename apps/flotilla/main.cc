#include "cli/commands.h"

int main(int argc, char** argv) { return flotilla::run_cli(argc, argv); }
