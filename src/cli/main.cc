// atom: the command line. Errors are one line on stderr; exit code 1 if the work failed, 2 if the command
// line or the checkpoint is wrong.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"

namespace {

// Long flags are accepted in snake_case too.
std::vector<std::string> normalised_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin() + 2, argument.begin() + end, '_', '-');
  }
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 takes
  return arguments;
}

int run(int argc, char** argv) {
  CLI::App app("atom: a native engine for large language models", "atom");
  app.require_subcommand(1)->fallthrough();  // --verbose may stand behind the command as well
  app.set_version_flag("--version", "atom 0.1.0");
  bool verbose = false;
  app.add_flag("--verbose,-v", verbose, "say more on stderr");
  app.parse_complete_callback([&] {
    if (verbose) atom::set_log_level(atom::LogLevel::info);
  });
  atom::cli::add_generate(app);
  atom::cli::add_chat(app);
  atom::cli::add_score(app);
  atom::cli::add_tokenize(app);
  atom::cli::add_template(app);
  atom::cli::add_check(app);
  atom::cli::add_inspect(app);
  atom::cli::add_plan(app);
  atom::cli::add_quantize(app);
  atom::cli::add_verify(app);
  atom::cli::add_bench(app);
  atom::cli::add_serve(app);
  std::string verbs;
  bool known = argc < 2 || argv[1][0] == '-';
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
    known |= argc >= 2 && verb->get_name() == argv[1];
  }
  if (!known) {
    atom::cli::say("atom: there is no command \"{}\"; the commands are {}\n", argv[1], verbs);
    return 2;
  }
  try {
    app.parse(normalised_arguments(argc, argv));
    atom::cli::write_out("");
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    const int code = app.exit(e);
    if (std::cout.flush()) return code;
    atom::cli::say("atom: standard output: {}\n", std::strerror(errno));
    return 1;
  } catch (const CLI::ParseError& e) {
    atom::cli::say("atom: {}; see atom --help\n", e.what());
    return 2;
  } catch (const atom::Error& e) {
    atom::cli::say("atom: {}\n", e.message());
    return e.code() == atom::Errc::invalid ? 2 : 1;
  } catch (const std::bad_alloc&) {
    atom::cli::say("atom: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    atom::cli::say("atom: {}\n", e.what());
    return 1;
  }
}

// Standard streams that are closed stay so for the program: no file it opens takes their place.
void hold_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) == -1) (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is seen as a failed write
  return run(argc, argv);
}
