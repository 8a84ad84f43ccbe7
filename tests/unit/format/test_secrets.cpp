// test_secrets.cpp - text that is overwritten in evidence, and text that must stay readable.
#include <string>

#include "catch.hpp"
#include "format/secrets.hpp"

using namespace fr;

namespace {

std::string masked(std::string text) {
  text.resize(mask_secrets(text.data(), text.size()));
  return text;
}

std::string arguments(std::string text) {
  text.resize(mask_arguments(text.data(), text.size()));
  return text;
}

// Shapes that only look like keys: put together here, so that no scanner takes them for real ones.
std::string key(const char* prefix) {
  return std::string(prefix) + "Q1w2E3r4T5y6U7i8O9p0";
}
constexpr const char* kRandom = "wJa1rXUt7nFE/MI7K5MDENG/bPx2RfiCYzEXAM9PLEkey";

}  // namespace

TEST_CASE("secrets: nothing of them stays") {
  const std::string cases[] = {
      "postgres://user:hunter2@db.local:5432/train",
      "redis://:hunter2@10.0.0.3/0",
      "https://x-access-hunter2hunter2:@github.com/a/b",
      "https://hunter2hunter2hunter2@sentry.example/7",
      "mongodb+srv://u:p@hunter2@cluster0.example/?w=majority",
      "amqp://guest:hunter2",  // cut before its '@'
      "root:hunter2@tcp(127.0.0.1:3306)/runs",
      "Server=db;User Id=sa;Password=hunter2;",
      "host=db user=me password=hunter2 dbname=x",
      "host=db password='hunter2 hunter2'",
      "Authorization: Bearer hunter2",
      "['Authorization: Bearer hunter2', 'Accept: */*']",
      "authorization: Basic hunter2==",
      "Cookie: session=hunter2; theme=dark",
      "curl -H \"X-Api-Key: hunter2\" https://api.example",
      "curl -u me:hunter2 https://api.example",
      "curl --user 'me:hunter2' https://api.example",
      "sent bearer hunter2 to the server",
      "--password hunter2",
      "--password=hunter2",
      "run.py --token=hunter2 --lr 0.1",
      "run.py --api-key hunter2",
      "run.py --db_pass hunter2",
      "{'password': 'hunter2', 'n': 3}",
      "{\"apiKey\": \"hunter2\"}",
      "{\"client_secret\":\"hunter2\"}",
      "('password', 'hunter2')",
      "['--passphrase', 'hunter2']",
      "[('user', 'me'), ('jwt', 'hunter2')]",
      "('token', b'hunter2')",
      "environ['HF_TOKEN'] = 'hunter2'",
      "WANDB_API_KEY=hunter2 python train.py",
      "export PAT=hunter2",
      "bearer = hunter2",
      "pwd: hunter2",
      "passphrase is in DSN=hunter2",
      "secret_pin=4711hunter2",
      "https://api.example/v1?token=hunter2&n=3",
      "https://bucket.example/x?X-Amz-Signature=hunter2&X-Amz-Date=1",
      "accessToken: hunter2",
      "credentials=hunter2",
  };
  for (const std::string& text : cases) {
    const std::string out = masked(text);
    INFO(text << " -> " << out);
    CHECK(out.find("hunter2") == std::string::npos);
    CHECK(out.find('*') != std::string::npos);
    CHECK(masked(out) == out);
  }
  for (const char* prefix : {"AKIA", "ghp_", "hf_", "sk-", "sk-ant-", "xoxb-", "glpat-", "AIza",
                             "github_pat_", "npm_", "nvapi-", "eyJ"}) {
    for (const char* around : {"%", "key %.", "'%'", "/x/%/y", "a=%,b=1", "(%)"}) {
      std::string text = around;
      text.replace(text.find('%'), 1, key(prefix));
      INFO(text << " -> " << masked(text));
      CHECK(masked(text).find("w2E3r4") == std::string::npos);
    }
  }
  CHECK(masked(kRandom) == "***");
  CHECK(masked(std::string("x = '") + kRandom + "'") == "x = '***'");
}

TEST_CASE("secrets: what a diagnosis needs stays") {
  for (const char* text : {
           "/home/me/project/train.py:57 in main",
           "/data/imagenet/shard-00017-of-01024.tar",
           "checkpoints/run_7/step_1000/rank3.pt",
           "runs/H200-8x-B32-LR3e4-S1-W0-seed42/metrics.json",
           "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/"
           "0e9e39f249a16976918f6564b8830bc894c89659/config.json",
           "commit 3f786850e387550fdab836ed7e6dc881de23001b",
           "torch.Size([32, 4096, 11008])",
           "mat1 and mat2 shapes cannot be multiplied (32x4096 and 11008x4096)",
           "gpu-node-0017.cluster-a.eu-west-1.compute.internal:29500",
           "tcp://10.0.0.1:29500",
           "connection to [fe80::1%eth0]:29500 timed out",
           "KeyError: 'layers.7.self_attn.q_proj.weight'",
           "Missing key(s) in state_dict: \"encoder.weight\"",
           "max_tokens=4096, n_tokens: 128, pad_token_id=0",
           "--tokenizer meta-llama/Llama-3.1-8B --num-keys 8 --token-file /run/secrets/hf",
           "tokenizer = 'LlamaTokenizerFast'",
           "undefined symbol: _ZN3c1017RegisterOperatorsD1Ev4EXt2Ab9Zq0Xy",
           "DistributedDataParallel.forward pass 2: 3 of 8",
           "key: layer.0",
           "git@github.com:org/repo.git",
           "path=/data/x, pattern=*.tar, dispatch=2, author=me",
           "2026-11-22T12:34:56.789Z epoch 3 batch 17 loss 0.25",
           "GPU-8f3c2a11-9d0e-4b7a-a1c2-3d4e5f60718a",
           "-> Loader.load /home/me/loader.py:19",
           "token=None password=None",
           "python -u train.py --lr 3e-4",
       }) {
    CHECK(masked(text) == text);
  }
}

TEST_CASE("secrets: arguments") {
  using namespace std::string_literals;
  CHECK(arguments("python\0train.py\0--password\0two words\0--lr\0003e-4\0"s) ==
        "python\0train.py\0--password\0***\0--lr\0003e-4\0"s);
  CHECK(arguments("x\0--token=a b c\0--db=postgres://u:hunter2@h/d\0-v"s) ==
        "x\0--token=***\0--db=postgres://u:***@h/d\0-v"s);
  CHECK(arguments("curl\0-u\0me:two words\0-H\0Authorization: Bearer abcdef"s) ==
        "curl\0-u\0me:***\0-H\0Authorization: ***"s);
  CHECK(arguments("x\0--auth\0-v\0--tokens\0004096\0--key\0/etc/key.pem\0--secret\0-x"s) ==
        "x\0--auth\0-v\0--tokens\0004096\0--key\0/etc/key.pem\0--secret\0**"s);
  CHECK(arguments(""s).empty());
}

TEST_CASE("secrets: names") {
  for (const char* name : {"password", "DB_PASSWD", "passphrase", "clientSecret", "secret_pin",
                           "AWS_SECRET_ACCESS_KEY", "credentials", "bearer", "jwt", "gh_pat", "dsn",
                           "pw", "apikey", "Authorization", "cookie"}) {
    INFO(name);
    CHECK(secrecy_of(name) == Secrecy::kFull);
  }
  for (const char* name : {"token", "hf_token", "token_list", "api_key", "userPass", "auth", "pwd",
                           "--token", "accessToken2"}) {
    INFO(name);
    CHECK(secrecy_of(name) == Secrecy::kWeak);
  }
  for (const char* name :
       {"key", "keys", "path", "pattern", "passes", "tokenizer", "token_ids", "keyword", "author",
        "password_file", "KeyError", "bypass", "dispatch", "", "___", "7"}) {
    INFO(name);
    CHECK(secrecy_of(name) == Secrecy::kNone);
  }
}

TEST_CASE("secrets: any bytes, never longer") {
  std::uint32_t state = 1;
  const std::string alphabet =
      "ab:/@='\",-\\ \0[]()?&;token=password: bearer sk-"
      "eyJ\xff\xc3";
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525u + 1013904223u;
      text += alphabet[(state >> 8) % alphabet.size()];
    }
    const std::string out = masked(text);
    CHECK(out.size() <= text.size());
    CHECK(arguments(text).size() <= text.size());
  }
}
