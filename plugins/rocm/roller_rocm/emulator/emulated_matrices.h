// Matrix instructions: a product of small matrices that a whole wave holds in its registers.
//
// MFMA: lane l holds of A row l % m, of B column l % n, and of both the elements k = (l / m) * kk + j of the inner dimension, kk of them
// in consecutive registers. A result of 16 x 16: register r of lane l is row 4 * (l / 16) + r, column l % 16; of 32 x 32: row
// 8 * (r / 4) + 4 * (l / 32) + r % 4, column l % 32; doubles: row 4 * r + l / 16. WMMA in waves of 32 lanes: lane l holds row and column
// l % 16 whole, both halves of the wave the same; register r of the result is row 2 * r + l / 16, column l % 16.
// Source: AMD's instruction set guides for CDNA and RDNA 3 and its matrix instruction calculator.
#pragma once
#include "emulated_halves.h"

namespace waves {

enum Element : i32 { OF_F32, OF_F16, OF_BF16, OF_I8, OF_F64 };

inline int bytes_of(int type) { return type == OF_F64 ? 8 : type == OF_F32 ? 4 : type == OF_I8 ? 1 : 2; }

// Element `j` of those that a lane holds.
inline double element(const Wave &w, int row, int lane, int j, int type, bool sign) {
    if (type == OF_F64) return bits<double>(w.v[row + 2 * j][lane] | u64(w.v[row + 2 * j + 1][lane]) << 32);
    const int per = 4 / bytes_of(type);
    const u32 word = w.v[row + j / per][lane] >> 8 * bytes_of(type) * (j % per);
    switch (type) {
        case OF_F32: return bits<float>(word);
        case OF_F16: return bits<half>(static_cast<u16>(word));
        case OF_BF16: return bfloat(word & 0xffff);
        default: return sign ? static_cast<int8_t>(word & 255) : static_cast<int>(word & 255);
    }
}

inline double before(const Wave &w, const Operand &o, int register_of, int lane, int type) {
    if (o.kind == REAL) return o.real;
    if (o.kind == INTEGER) return type == OF_I8 ? double(o.integer) : type == OF_F64 ? bits<double>(o.integer) : double(bits<float>(u32(o.integer)));
    if (type == OF_F64) return bits<double>(w.v[o.index + 2 * register_of][lane] | u64(w.v[o.index + 2 * register_of + 1][lane]) << 32);
    const u32 word = w.v[o.index + register_of][lane];
    return type == OF_I8 ? double(static_cast<i32>(word)) : double(bits<float>(word));
}

inline void set_result(Wave &w, int row, int lane, double value, int type) {
    if (type == OF_F64) {
        const u64 raw = bits<u64>(value);
        w.v[row][lane] = static_cast<u32>(raw), w.v[row + 1][lane] = static_cast<u32>(raw >> 32);
    } else {
        w.v[row][lane] = type == OF_I8 ? static_cast<u32>(static_cast<i64>(value)) : bits<u32>(static_cast<float>(value));
    }
}

struct Small { double a[32][32], b[32][32]; };  // rows of A and columns of B, by the inner dimension

inline void multiply(Wave &w, const Instruction &i, const Small &s, int registers, int (*row_of)(int, int, int)) {
    const int m = i.shape[0], n = i.shape[1], k = i.shape[2], type = i.shape[3];
    static double sums[SPARE][LANES];
    for (int r = 0; r < registers; r++)
        for (int l = 0; l < w.machine->lanes; l++) {
            double sum = before(w, i.operands[3], r, l, type);
            const int row = row_of(m, r, l), column = l % n;
            for (int e = 0; e < k; e++) sum += s.a[row][e] * s.b[column][e];
            sums[r][l] = sum;
        }
    const int each = type == OF_F64 ? 2 : 1;
    for (int r = 0; r < registers; r++)
        for (int l = 0; l < w.machine->lanes; l++) set_result(w, i.operands[0].index + each * r, l, sums[r][l], type);
}

inline void mfma(Wave &w, const Instruction &i) {
    const int m = i.shape[0], k = i.shape[2], type = i.shape[3], each = k * m / LANES;
    Small s;
    for (int l = 0; l < LANES; l++)
        for (int j = 0; j < each; j++) {
            s.a[l % m][l / m * each + j] = element(w, i.operands[1].index, l, j, type, true);
            s.b[l % m][l / m * each + j] = element(w, i.operands[2].index, l, j, type, true);
        }
    multiply(w, i, s, m * m / LANES, [](int rows, int r, int l) { return rows == 16 ? 4 * (l / 16) + r : 8 * (r / 4) + 4 * (l / 32) + r % 4; });
}

inline void mfma_double(Wave &w, const Instruction &i) {
    Small s;
    for (int l = 0; l < LANES; l++) {
        s.a[l % 16][l / 16] = element(w, i.operands[1].index, l, 0, OF_F64, true);
        s.b[l % 16][l / 16] = element(w, i.operands[2].index, l, 0, OF_F64, true);
    }
    multiply(w, i, s, 4, [](int, int r, int l) { return 4 * r + l / 16; });
}

inline void wmma(Wave &w, const Instruction &i) {
    const int k = i.shape[2], type = i.shape[3];
    if (w.machine->lanes != 32) throw Fault("a matrix instruction in a wave that has not 32 lanes");
    Small s;
    for (int which = 1; which < 3; which++) {
        const int first = i.operands[which].index;
        for (int r = 0; r < k * bytes_of(type) / 4; r++)
            for (int l = 0; l < 16; l++)
                if (w.v[first + r][l] != w.v[first + r][l + 16]) throw Fault("the halves of the wave hold different operands of a matrix instruction");
        for (int l = 0; l < 16; l++)
            for (int e = 0; e < k; e++) (which == 1 ? s.a : s.b)[l][e] = element(w, first, l, e, type, i.operands[which].mods & NEG);
    }
    multiply(w, i, s, 8, [](int, int r, int l) { return 2 * r + l / 16; });
}

inline void add_matrices(Table &t) { t["mfma"] = mfma, t["mfma_f64"] = mfma_double, t["wmma"] = wmma; }

}  // namespace waves
