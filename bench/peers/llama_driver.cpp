// llama.cpp behind the protocol of bench/peers/line_json.py: one JSON object a line in, one out.
//
//     llama_driver MODEL.gguf THREADS
//
// It decodes greedily through llama.cpp's public calls. A request's mode is `plain`, or the name of one of llama.cpp's
// own n-gram speculations (`ngram-cache`, `ngram-simple`, `ngram-map-k`, `ngram-map-k4v`, `ngram-mod`), with its
// default settings. Nothing is remembered from one request to the next.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "build-info.h"
#include "common.h"
#include "llama.h"
#include "nlohmann/json.hpp"
#include "speculative.h"

using json = nlohmann::ordered_json;
using Tokens = std::vector<llama_token>;
using Clock = std::chrono::steady_clock;

constexpr int CONTEXT = 8192;
constexpr int BATCH = 512;  // rows of a prompt in one pass: llama.cpp's default
constexpr llama_seq_id SEQUENCE = 0;

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Driver {
public:
    Driver(const char * file, int threads) {
        model = llama_model_load_from_file(file, llama_model_default_params());
        if (!model) throw std::runtime_error("the model cannot be loaded");
        llama_context_params settings = llama_context_default_params();
        settings.n_ctx = CONTEXT;
        settings.n_batch = settings.n_ubatch = BATCH;
        settings.n_threads = settings.n_threads_batch = threads;
        context = llama_init_from_model(model, settings);
        if (!context) throw std::runtime_error("there is no room for a context");
        vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
        batch = llama_batch_init(BATCH, 0, 1);
    }

    json answer(const json & request) {
        const Tokens prompt = request.at("ids").get<Tokens>();
        const size_t wanted = request.at("tokens").get<size_t>();
        banned = request.at("banned").get<Tokens>();
        if (prompt.empty() || prompt.size() + wanted > CONTEXT) throw std::runtime_error("the prompt does not fit");
        const std::string mode = request.at("mode").get<std::string>();
        common_speculative_ptr drafter = mode == "plain" ? nullptr : make_drafter(mode);
        forget(0);

        const auto start = Clock::now();
        read(prompt);
        Tokens text = prompt, written = {choose(batch.n_tokens - 1)};
        const double first_seconds = seconds_since(start);
        int forwards = 1;
        if (drafter) common_speculative_begin(drafter.get(), SEQUENCE, text);
        while (written.size() < wanted) {
            const llama_token last = written.back();
            const Tokens draft = drafter ? propose(drafter.get(), text, last, wanted - written.size() - 1) : Tokens();
            clear_batch();
            common_batch_add(batch, last, (llama_pos) text.size(), {SEQUENCE}, true);
            for (size_t i = 0; i < draft.size(); i++)
                common_batch_add(batch, draft[i], (llama_pos) (text.size() + 1 + i), {SEQUENCE}, true);
            run();
            forwards++;
            if (drafter && !common_speculative_process(drafter.get(), batch))
                throw std::runtime_error("the speculation failed");
            // Row i says what comes after draft i - 1: as long as that is draft i, the next row holds, too.
            size_t accepted = 0;
            text.push_back(last);
            written.push_back(choose(0));
            while (accepted < draft.size() && written.back() == draft[accepted]) {
                text.push_back(draft[accepted++]);
                written.push_back(choose((int) accepted));
            }
            if (drafter) common_speculative_accept(drafter.get(), SEQUENCE, (uint16_t) accepted);
            if (accepted < draft.size()) forget((llama_pos) text.size());
        }
        const double seconds = seconds_since(start);
        return {{"ids", written}, {"first_tokens", 1}, {"first_seconds", first_seconds}, {"seconds", seconds},
                {"forwards", forwards}};
    }

    // The time of one pass over so many rows, each with its logits, behind a text of `context` tokens.
    json time_rows(const json & request) {
        const int length = request.at("context").get<int>();
        forget(0);
        read(Tokens(length, 1));
        json times = json::object();
        for (const int width : request.at("rows").get<std::vector<int>>()) {
            clear_batch();
            for (int i = 0; i < width; i++) common_batch_add(batch, 1, length + i, {SEQUENCE}, true);
            const auto start = Clock::now();
            run();
            llama_get_logits_ith(context, width - 1);
            times[std::to_string(width)] = seconds_since(start);
            forget(length);
        }
        return {{"times", times}};
    }

    // The logits of every position of a text, as floats in a file: rows of the vocabulary's size.
    json write_logits(const json & request) {
        const Tokens text = request.at("ids").get<Tokens>();
        if (text.size() > BATCH) throw std::runtime_error("the text does not fit");
        forget(0);
        clear_batch();
        for (size_t i = 0; i < text.size(); i++) common_batch_add(batch, text[i], (llama_pos) i, {SEQUENCE}, true);
        run();
        std::ofstream file(request.at("logits").get<std::string>(), std::ios::binary);
        for (size_t i = 0; i < text.size(); i++)
            file.write((const char *) llama_get_logits_ith(context, (int) i), vocabulary * sizeof(float));
        if (!file.flush()) throw std::runtime_error("the file cannot be written");
        return {{"vocabulary", vocabulary}};
    }

private:
    common_speculative_ptr make_drafter(const std::string & type) {
        common_params_speculative settings;
        settings.types = common_speculative_types_from_names({type});
        settings.draft.ctx_tgt = context;
        common_speculative_ptr drafter(common_speculative_init(settings, 1));
        if (!drafter) throw std::runtime_error("llama.cpp has no speculation " + type);
        return drafter;
    }

    Tokens propose(common_speculative * drafter, const Tokens & text, llama_token last, size_t most) {
        Tokens draft;
        if (most == 0) return draft;
        auto & wish = common_speculative_get_draft_params(drafter, SEQUENCE);
        wish.drafting = true;
        wish.n_max = (int32_t) most;
        wish.pos0 = (llama_pos) text.size();
        wish.id_last = last;
        wish.prompt = &text;
        wish.result = &draft;
        common_speculative_draft(drafter);
        if (draft.size() > most) draft.resize(most);
        return draft;
    }

    void read(const Tokens & tokens) {
        for (size_t at = 0; at < tokens.size(); at += BATCH) {
            clear_batch();
            for (size_t i = at; i < std::min(tokens.size(), at + BATCH); i++)
                common_batch_add(batch, tokens[i], (llama_pos) i, {SEQUENCE}, i + 1 == tokens.size());
            run();
        }
    }

    void clear_batch() { common_batch_clear(batch); }

    void run() {
        if (llama_decode(context, batch) != 0) throw std::runtime_error("llama_decode failed");
    }

    llama_token choose(int row) {
        float * logits = llama_get_logits_ith(context, row);
        for (const llama_token token : banned) logits[token] = -INFINITY;
        // In blocks: a maximum over floats alone is done by vectors, and only its block is searched for the place.
        constexpr int BLOCK = 512;
        float best = -INFINITY;
        int place = 0;
        for (int start = 0; start < vocabulary; start += BLOCK) {
            const int end = std::min(vocabulary, start + BLOCK);
            float highest = -INFINITY;
            for (int i = start; i < end; i++) highest = logits[i] > highest ? logits[i] : highest;
            if (highest > best) best = highest, place = start;
        }
        while (logits[place] != best) place++;
        return place;
    }

    void forget(llama_pos from) { llama_memory_seq_rm(llama_get_memory(context), SEQUENCE, from, -1); }

    llama_model * model = nullptr;
    llama_context * context = nullptr;
    llama_batch batch = {};
    int vocabulary = 0;
    Tokens banned;
};

static void log_problems(ggml_log_level level, const char * text, void *) {
    if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
}

int main(int count, char ** arguments) {
    try {
        if (count != 3) throw std::runtime_error("usage: llama_driver MODEL.gguf THREADS");
        llama_log_set(log_problems, nullptr);
        llama_backend_init();
        Driver driver(arguments[1], std::atoi(arguments[2]));
        const json about = {{"version", llama_build_info()}, {"compiler", llama_compiler()},
                            {"system", llama_print_system_info()}};
        std::cout << json{{"about", about}}.dump() << std::endl;
        for (std::string line; std::getline(std::cin, line);) {
            const json request = json::parse(line);
            json reply;
            try {
                reply = request.contains("rows")     ? driver.time_rows(request)
                        : request.contains("logits") ? driver.write_logits(request)
                                                     : driver.answer(request);
            } catch (const std::exception & error) {
                reply = {{"error", error.what()}};
            }
            std::cout << reply.dump() << std::endl;
        }
    } catch (const std::exception & error) {
        std::cout << json{{"error", error.what()}}.dump() << std::endl;
        return 1;
    }
}
