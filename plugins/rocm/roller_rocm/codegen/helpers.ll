; What kernels call. Fences name local memory alone, so that loads from global memory stay under way across a barrier. LLVM may drop
; the wait that a fence stands for (at the start of a loop for what its last round wrote): the one before the barrier it does not touch.
target triple = "amdgcn-amd-amdhsa-hcc"

define linkonce_odr hidden i32 @roller_barrier() #0 {
  fence syncscope("workgroup") release, !mmra !0
  call void asm sideeffect "s_waitcnt lgkmcnt(0)", ""()
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire, !mmra !0
  ret i32 0
}

define linkonce_odr hidden i32 @roller_exchange_int32(i32 %value, i32 %distance) #0 {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  %other = xor i32 %lane, %distance
  %place = shl i32 %other, 2
  %found = call i32 @llvm.amdgcn.ds.bpermute(i32 %place, i32 %value)
  ret i32 %found
}

define linkonce_odr hidden i32 @roller_exchange_uint32(i32 %value, i32 %distance) #0 {
  %found = call i32 @roller_exchange_int32(i32 %value, i32 %distance)
  ret i32 %found
}

define linkonce_odr hidden float @roller_exchange_float32(float %value, i32 %distance) #0 {
  %bits = bitcast float %value to i32
  %found = call i32 @roller_exchange_int32(i32 %bits, i32 %distance)
  %result = bitcast i32 %found to float
  ret float %result
}

; The same number, of which LLVM knows only that it is not zero: a way around the loop would keep what the loop begins with in
; registers of its own, while the loop runs.
define linkonce_odr hidden i32 @roller_trips(i32 %trips) #4 {
  %found = call i32 asm "", "=s,0"(i32 %trips) #4, !range !1
  ret i32 %found
}

; The same value, computed by now: LLVM would put off the computing, beyond barriers, and keep what it is computed of.
define linkonce_odr hidden float @roller_settled_float32(float %value) #0 {
  %found = call float asm sideeffect "", "=v,0"(float %value)
  ret float %found
}

define linkonce_odr hidden i32 @roller_settled_int32(i32 %value) #0 {
  %found = call i32 asm sideeffect "", "=v,0"(i32 %value)
  ret i32 %found
}

define linkonce_odr hidden double @roller_settled_float64(double %value) #0 {
  %found = call double asm sideeffect "", "=v,0"(double %value)
  ret double %found
}

define linkonce_odr hidden i64 @roller_settled_int64(i64 %value) #0 {
  %found = call i64 asm sideeffect "", "=v,0"(i64 %value)
  ret i64 %found
}

declare void @llvm.amdgcn.s.barrier() #1
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32) #2
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32) #2
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32) #3

attributes #0 = { alwaysinline convergent nounwind }
attributes #1 = { convergent nounwind }
attributes #2 = { nounwind willreturn memory(none) }
attributes #4 = { alwaysinline nounwind willreturn memory(none) }
attributes #3 = { convergent nounwind willreturn memory(none) }
!0 = !{!"amdgpu-synchronize-as", !"local"}
!1 = !{i32 1, i32 2147483647}
