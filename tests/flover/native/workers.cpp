// Spreads work of random sizes over threads, from three threads at once; built with a sanitizer.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "workers.hpp"

namespace {

void call(unsigned luck) {
    for (int turn = 0; turn < 2000; ++turn) {
        luck = luck * 1664525u + 1013904223u;
        const int count = 1 + luck % 200, threads = 1 + (luck >> 8) % 5, parts = 1 + (luck >> 16) % 40;
        std::vector<int> done(count, 0);
        tidal::for_ranges(threads, count, parts, [&](int begin, int end) {
            for (int each = begin; each < end; ++each) done[each] += each + 1;
        });
        for (int each = 0; each < count; ++each)
            if (done[each] != each + 1) {
                std::printf("%d was done %d times\n", each, done[each] / (each + 1));
                std::exit(1);
            }
        if (turn % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // helpers fall asleep
    }
}

}  // namespace

int main() {
    std::thread one(call, 1), another(call, 2);
    call(3);
    one.join();
    another.join();
    std::puts("all done once");
}
